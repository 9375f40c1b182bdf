"""The exception hierarchy: one class for each error code, with its HTTP status and what the job does about it.

TouchstoneError(detail, remedy)
├── RequestRejected: Validation, UnsupportedParameter, ContextLengthExceeded, BadRequest, BadJson, PayloadTooLarge,
│   UnsupportedMediaType, NotFound, MethodNotAllowed, RangeNotSatisfiable, ForbiddenHost, ForbiddenOrigin,
│   Unauthorized
├── UnknownName: UnknownDevice, UnknownModel, UnknownJob
├── StateConflict: DeviceNotReady, Quarantined, JobFinished, JobActive, JobCancelled, ModelNotDownloaded,
│   PlacementTooLow, ModelIncompatible, ModelBroken, QueueFull
├── WorkerFailure: WorkerCrashed, WorkerHung, ModelLoadFailed, DeviceLost, DeviceWrong, OutOfMemory
└── ServiceFailure: Interrupted, DiskFull, SearchUnavailable, RuntimeFailed, Internal, Configuration

A new error is one class here. A subclass inherits code, title, status and flags; `from_code` returns the class that
defines the `code`.
"""

from __future__ import annotations

from typing import Any

from backend.common.clean_text import encodable
from backend.common.types import JsonObject, Problem

BY_CODE: dict[str, type[TouchstoneError]] = {}


class TouchstoneError(Exception):
    """Base of the hierarchy: an error code, a detail (what happened) and a remedy (what to do).

    `falls_back`: the fallback policy may try another device. `kills_worker`: it counts as a worker death.
    """

    code = "internal_error"
    title = "Internal error"
    status = 500
    falls_back = False
    kills_worker = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Register a class that defines a code. Raises TypeError if the code is already registered."""
        super().__init_subclass__(**options)
        if "code" in cls.__dict__:
            if cls.code in BY_CODE:
                raise TypeError(f"{cls.__name__}: the code {cls.code!r} belongs to {BY_CODE[cls.code].__name__}.")
            BY_CODE[cls.code] = cls

    def __init__(self, detail: str, remedy: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = encodable(detail)
        self.remedy = encodable(remedy)
        self.extra = extra  # additional members of the problem document

    def problem(self) -> Problem:
        """Return the problem document of this error (RFC 9457)."""
        return Problem(
            type=f"urn:touchstone:problem:{self.code}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            code=self.code,
            remedy=self.remedy,
        )


class RequestRejected(TouchstoneError):
    """The request is invalid. No work was started."""

    status = 400


class Validation(RequestRejected):
    code, title = "validation_error", "Invalid request"
    status = 422


class UnsupportedParameter(RequestRejected):
    code, title = "unsupported_parameter", "Unsupported parameter"
    status = 422


class ContextLengthExceeded(RequestRejected):
    code, title = "context_length_exceeded", "The prompt exceeds the model's context length"


class BadRequest(RequestRejected):
    code, title = "bad_request", "Malformed HTTP request"


class BadJson(RequestRejected):
    code, title = "bad_json", "The body is not valid JSON"


class PayloadTooLarge(RequestRejected):
    code, title = "payload_too_large", "The request body is too large"
    status = 413


class UnsupportedMediaType(RequestRejected):
    code, title = "unsupported_media_type", "Unsupported media type"
    status = 415


class NotFound(RequestRejected):
    code, title = "not_found", "Not found"
    status = 404


class MethodNotAllowed(RequestRejected):
    code, title = "method_not_allowed", "Method not allowed"
    status = 405


class RangeNotSatisfiable(RequestRejected):
    code, title = "range_not_satisfiable", "Range not satisfiable"
    status = 416


class ForbiddenHost(RequestRejected):
    code, title = "forbidden_host", "The Host header is not allowed"
    status = 421


class ForbiddenOrigin(RequestRejected):
    code, title = "forbidden_origin", "The Origin is not allowed"
    status = 403


class Unauthorized(RequestRejected):
    code, title = "unauthorized", "Authentication required"
    status = 401


class UnknownName(TouchstoneError):
    """The request names something that does not exist."""

    status = 404


class UnknownDevice(UnknownName):
    code, title = "unknown_device", "Unknown device"


class UnknownModel(UnknownName):
    code, title = "unknown_model", "Unknown model"


class UnknownJob(UnknownName):
    code, title = "unknown_job", "Unknown job"


class StateConflict(TouchstoneError):
    """The request is valid but cannot be served in the current state."""

    status = 409


class DeviceNotReady(StateConflict):
    code, title = "device_not_ready", "The device is not ready"
    falls_back = True


class Quarantined(StateConflict):
    code, title = "quarantined", "The device is quarantined"
    falls_back = True


class JobFinished(StateConflict):
    code, title = "job_finished", "The job has already finished"


class JobActive(StateConflict):
    code, title = "job_active", "The job is still active"


class JobCancelled(StateConflict):
    code, title = "job_cancelled", "The job was cancelled"


class ModelNotDownloaded(StateConflict):
    code, title = "model_not_downloaded", "The model is not downloaded"


class PlacementTooLow(StateConflict):
    code, title = "placement_too_low", "Too little of the model is placed on the device"
    falls_back = True


class ModelIncompatible(StateConflict):
    code, title = "model_incompatible", "The model cannot run on this device"
    status = 422
    falls_back = True


class ModelBroken(StateConflict):
    code, title = "model_broken", "The model files are not usable"
    status = 422


class QueueFull(StateConflict):
    code, title = "queue_full", "The queue is full"
    status = 429


class WorkerFailure(TouchstoneError):
    """A worker process failed while it loaded a model or ran a job."""

    status = 502


class WorkerCrashed(WorkerFailure):
    code, title = "worker_crashed", "The worker process died"
    kills_worker = True


class WorkerHung(WorkerFailure):
    code, title = "worker_hung", "The worker process timed out"
    status = 504
    kills_worker = True


class ModelLoadFailed(WorkerFailure):
    code, title = "model_load_failed", "The model could not be loaded"
    falls_back = True


class DeviceLost(WorkerFailure):
    code, title = "device_lost", "The device was lost"
    status = 503
    falls_back = True


class DeviceWrong(WorkerFailure):
    code, title = "device_wrong", "The results or the placement on the device are wrong"
    falls_back = True


class OutOfMemory(WorkerFailure):
    code, title = "out_of_memory", "Out of memory"
    status = 507
    falls_back = True


class ServiceFailure(TouchstoneError):
    """The service itself failed."""

    status = 500


class Interrupted(ServiceFailure):
    code, title = "interrupted", "The server stopped while the job was running"
    status = 503


class DiskFull(ServiceFailure):
    code, title = "disk_full", "The disk is full"
    status = 507


class SearchUnavailable(ServiceFailure):
    code, title = "search_unavailable", "Models cannot be searched now"
    status = 503


class RuntimeFailed(ServiceFailure):
    code, title = "runtime_failed", "The runtime could not be installed or verified"
    status = 502


class Internal(ServiceFailure):
    code, title = "internal_error", "Internal error"


class Configuration(ServiceFailure):
    """A setting cannot be used. The command line exits with code 2."""

    code, title = "configuration", "Invalid configuration"


def from_code(code: str, detail: str, remedy: str, **extra: Any) -> TouchstoneError:
    """Rebuild an error from its code, as it arrives from another process. An unknown code becomes Internal."""
    return BY_CODE.get(code, Internal)(detail, remedy, **extra)


# Errors that a request or the service has, never a worker: a job must not be ended by one that its child made up.
_NOT_OF_A_CHILD = frozenset(
    "unauthorized forbidden_host forbidden_origin not_found method_not_allowed job_cancelled job_active job_finished "
    "unknown_job unknown_model unknown_device queue_full interrupted quarantined device_not_ready".split()
)
# Members of a problem, and arguments, that an additional member must not replace.
_RESERVED = frozenset(
    "type title status detail code remedy self job problem headers path retry_after_s killed_from_outside".split()
)


def from_child(report: JsonObject) -> TouchstoneError:
    """Rebuild the error of a child's report `{code, detail, remedy, extra?}`; WorkerCrashed for an impossible code."""
    code, detail, remedy = report["code"], report["detail"], report["remedy"]
    if code not in BY_CODE or code in _NOT_OF_A_CHILD:
        return WorkerCrashed(
            f"A child process reported the error {code[:50]!r}, which it cannot have: {detail}", remedy
        )
    extra = {name: value for name, value in (report.get("extra") or {}).items() if name not in _RESERVED}
    return BY_CODE[code](detail, remedy, **extra)
