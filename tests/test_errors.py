"""The exception hierarchy: what a subclass inherits, and what an error becomes when it crosses a process."""

from __future__ import annotations

import pytest

from backend.common import errors
from backend.common.errors import BY_CODE, DeviceNotReady, TouchstoneError, from_code

# The codes of the API with their statuses, as callers rely on them.
PUBLISHED = {
    "validation_error": 422,
    "unsupported_parameter": 422,
    "context_length_exceeded": 400,
    "unknown_device": 404,
    "unknown_model": 404,
    "unknown_job": 404,
    "device_not_ready": 409,
    "quarantined": 409,
    "job_finished": 409,
    "job_active": 409,
    "job_cancelled": 409,
    "model_not_downloaded": 409,
    "placement_too_low": 409,
    "model_incompatible": 422,
    "model_broken": 422,
    "queue_full": 429,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "bad_json": 400,
    "not_found": 404,
    "method_not_allowed": 405,
    "forbidden_host": 421,
    "forbidden_origin": 403,
    "unauthorized": 401,
    "worker_crashed": 502,
    "model_load_failed": 502,
    "device_lost": 503,
    "interrupted": 503,
    "worker_hung": 504,
    "out_of_memory": 507,
    "disk_full": 507,
    "internal_error": 500,
}
FALL_BACK = {"device_not_ready", "quarantined", "model_incompatible", "model_load_failed", "out_of_memory"}
FALL_BACK |= {"device_lost", "placement_too_low"}


class DeviceBusy(DeviceNotReady):
    """A subclass that defines no code."""


class DeviceAsleep(DeviceBusy):
    code, title = "device_asleep_in_a_test", "The device sleeps"


def test_published_codes_keep_their_statuses() -> None:
    assert {code: BY_CODE[code].status for code in PUBLISHED} == PUBLISHED


def test_the_policy_falls_back_for_these_codes_alone() -> None:
    own = {code for code, kind in BY_CODE.items() if kind.__module__ == errors.__name__ and kind.falls_back}
    assert own == FALL_BACK


def test_a_subclass_inherits_code_status_title_and_flags() -> None:
    problem = DeviceBusy("Another program uses it.", "Wait.").problem()
    assert (problem.code, problem.status, problem.title) == ("device_not_ready", 409, DeviceNotReady.title)
    assert DeviceBusy.falls_back and not DeviceBusy.kills_worker


def test_an_error_is_rebuilt_from_its_code_at_any_depth() -> None:
    rebuilt = from_code("device_asleep_in_a_test", "It sleeps.", "Wake it.", fields=["device"])
    assert type(rebuilt) is DeviceAsleep and isinstance(rebuilt, DeviceNotReady)
    assert (rebuilt.status, rebuilt.falls_back, rebuilt.extra) == (409, True, {"fields": ["device"]})


def test_an_inherited_code_gives_the_class_that_owns_it() -> None:
    assert type(from_code(DeviceBusy.code, "d", "r")) is DeviceNotReady


def test_an_unknown_code_becomes_an_internal_error() -> None:
    assert type(from_code("of_another_version", "d", "r")) is errors.Internal


def test_a_code_that_is_taken_is_an_error_at_import() -> None:
    with pytest.raises(TypeError, match="device_not_ready"):

        class _Second(TouchstoneError):
            code = "device_not_ready"
