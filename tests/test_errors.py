"""The exception hierarchy: inherited codes and flags, and errors from another process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.common import errors
from backend.common.errors import BY_CODE, DeviceNotReady, TouchstoneError, from_code

# The published codes with their HTTP status, and whether the fallback policy tries another device.
PUBLISHED = {
    "validation_error": (422, False),
    "unsupported_parameter": (422, False),
    "context_length_exceeded": (400, False),
    "unknown_device": (404, False),
    "unknown_model": (404, False),
    "unknown_job": (404, False),
    "device_not_ready": (409, True),
    "quarantined": (409, True),
    "job_finished": (409, False),
    "job_active": (409, False),
    "job_cancelled": (409, False),
    "model_not_downloaded": (409, False),
    "placement_too_low": (409, True),
    "model_incompatible": (422, True),
    "model_broken": (422, False),
    "queue_full": (429, False),
    "payload_too_large": (413, False),
    "unsupported_media_type": (415, False),
    "bad_json": (400, False),
    "not_found": (404, False),
    "method_not_allowed": (405, False),
    "forbidden_host": (421, False),
    "forbidden_origin": (403, False),
    "unauthorized": (401, False),
    "worker_crashed": (502, False),
    "model_load_failed": (502, True),
    "device_lost": (503, True),
    "interrupted": (503, False),
    "worker_hung": (504, False),
    "out_of_memory": (507, True),
    "disk_full": (507, False),
    "internal_error": (500, False),
}


class DeviceBusy(DeviceNotReady):
    """A subclass that defines no code."""


@pytest.fixture
def device_asleep() -> Iterator[type[DeviceNotReady]]:
    """A subclass of a subclass, registered for one test: the list of codes is one for all tests of a process."""

    class DeviceAsleep(DeviceBusy):
        code, title = "device_asleep_in_a_test", "The device sleeps"

    yield DeviceAsleep
    del BY_CODE[DeviceAsleep.code]


def test_published_codes_keep_their_status_and_fallback() -> None:
    assert {code: (BY_CODE[code].status, BY_CODE[code].falls_back) for code in PUBLISHED} == PUBLISHED


def test_a_subclass_inherits_code_status_title_and_flags() -> None:
    problem = DeviceBusy("Another program uses it.", "Wait.").problem()
    assert (problem.code, problem.status, problem.title) == ("device_not_ready", 409, DeviceNotReady.title)
    assert DeviceBusy.falls_back and not DeviceBusy.kills_worker


def test_an_error_is_rebuilt_from_its_code_at_any_depth(device_asleep: type[DeviceNotReady]) -> None:
    rebuilt = from_code("device_asleep_in_a_test", "It sleeps.", "Wake it.", fields=["device"])
    assert type(rebuilt) is device_asleep and isinstance(rebuilt, DeviceNotReady)
    assert (rebuilt.status, rebuilt.falls_back, rebuilt.extra) == (409, True, {"fields": ["device"]})


def test_an_inherited_code_gives_the_class_that_owns_it() -> None:
    assert type(from_code(DeviceBusy.code, "d", "r")) is DeviceNotReady


def test_an_unknown_code_becomes_an_internal_error() -> None:
    assert type(from_code("of_another_version", "d", "r")) is errors.Internal


def test_a_code_that_is_taken_is_an_error_at_import() -> None:
    with pytest.raises(TypeError, match="device_not_ready"):

        class _Second(TouchstoneError):
            code = "device_not_ready"
