"""Every way to say no, as one tree. Knows nothing of HTTP: `api/problems.py` gives each code its status.

TouchstoneError(detail, remedy)
├── Refused by what the caller sent: Validation, UnsupportedParameter, ContextLengthExceeded, BadJson, PayloadTooLarge,
│   UnsupportedMediaType, NotFound, MethodNotAllowed, RangeNotSatisfiable, ForbiddenHost, ForbiddenOrigin, Unauthorized
├── Unknown names: UnknownDevice, UnknownModel, UnknownJob
├── Refused by the state of things: DeviceNotReady, Quarantined, JobFinished, JobActive, JobCancelled,
│   ModelNotDownloaded, PlacementTooLow, ModelIncompatible, ModelBroken, QueueFull
├── Failures of a worker: WorkerCrashed, WorkerHung, ModelLoadFailed, DeviceLost, OutOfMemory
└── Failures of the service: Interrupted, DiskFull, RuntimeFailed, Internal, Configuration
"""

from __future__ import annotations

from typing import Any


def unicode(text: str) -> str:
    """The text as every answer can carry it: a file's name on Linux may be bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


class TouchstoneError(Exception):
    """Base of the tree: a code, a sentence that says what is wrong, and one that says what to do."""

    code = "internal_error"
    title = "Internal error"

    def __init__(self, detail: str, remedy: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = unicode(detail)
        self.remedy = unicode(remedy)
        self.extra = extra  # members that the problem document carries beside the fixed ones


class Validation(TouchstoneError):
    code, title = "validation_error", "The request is not valid"


class UnsupportedParameter(TouchstoneError):
    code, title = "unsupported_parameter", "A parameter is not supported"


class ContextLengthExceeded(TouchstoneError):
    code, title = "context_length_exceeded", "The prompt is longer than the model's context"


class BadRequest(TouchstoneError):
    code, title = "bad_request", "The request is not HTTP as it should be"


class BadJson(TouchstoneError):
    code, title = "bad_json", "The body is not JSON"


class PayloadTooLarge(TouchstoneError):
    code, title = "payload_too_large", "The request is too large"


class UnsupportedMediaType(TouchstoneError):
    code, title = "unsupported_media_type", "The media type is not accepted"


class NotFound(TouchstoneError):
    code, title = "not_found", "There is nothing at this address"


class MethodNotAllowed(TouchstoneError):
    code, title = "method_not_allowed", "The method is not allowed here"


class RangeNotSatisfiable(TouchstoneError):
    code, title = "range_not_satisfiable", "The file has no such bytes"


class ForbiddenHost(TouchstoneError):
    code, title = "forbidden_host", "The Host header is not allowed"


class ForbiddenOrigin(TouchstoneError):
    code, title = "forbidden_origin", "The Origin is not allowed"


class Unauthorized(TouchstoneError):
    code, title = "unauthorized", "A valid token is needed"


class UnknownDevice(TouchstoneError):
    code, title = "unknown_device", "There is no such device"


class UnknownModel(TouchstoneError):
    code, title = "unknown_model", "There is no such model"


class UnknownJob(TouchstoneError):
    code, title = "unknown_job", "There is no such job"


class DeviceNotReady(TouchstoneError):
    code, title = "device_not_ready", "The device is not ready"


class Quarantined(TouchstoneError):
    code, title = "quarantined", "The device is quarantined"


class JobFinished(TouchstoneError):
    code, title = "job_finished", "The job has already ended"


class JobActive(TouchstoneError):
    code, title = "job_active", "The job is still alive"


class JobCancelled(TouchstoneError):
    code, title = "job_cancelled", "The job was cancelled"


class ModelNotDownloaded(TouchstoneError):
    code, title = "model_not_downloaded", "The model is not on this machine yet"


class PlacementTooLow(TouchstoneError):
    code, title = "placement_too_low", "Too little of the model lies on the device"


class ModelIncompatible(TouchstoneError):
    code, title = "model_incompatible", "The model cannot run there"


class ModelBroken(TouchstoneError):
    code, title = "model_broken", "The model's files are not usable"


class QueueFull(TouchstoneError):
    code, title = "queue_full", "The queue is full"


class WorkerCrashed(TouchstoneError):
    code, title = "worker_crashed", "The worker process died"


class WorkerHung(TouchstoneError):
    code, title = "worker_hung", "The worker process stopped making progress"


class ModelLoadFailed(TouchstoneError):
    code, title = "model_load_failed", "The model could not be loaded"


class DeviceLost(TouchstoneError):
    code, title = "device_lost", "The device was lost"


class OutOfMemory(TouchstoneError):
    code, title = "out_of_memory", "Out of memory"


class Interrupted(TouchstoneError):
    code, title = "interrupted", "The server stopped while the job was running"


class DiskFull(TouchstoneError):
    code, title = "disk_full", "The disk is full"


class RuntimeFailed(TouchstoneError):
    code, title = "runtime_failed", "The runtime could not be made or proved"


class Internal(TouchstoneError):
    pass


class Configuration(TouchstoneError):
    """A setting cannot be used; the command line ends with exit code 2."""

    code, title = "configuration", "The configuration is not valid"


BY_CODE: dict[str, type[TouchstoneError]] = {kind.code: kind for kind in TouchstoneError.__subclasses__()}


def from_code(code: str, detail: str, remedy: str, **extra: Any) -> TouchstoneError:
    """Rebuilds an error that crossed a process border as its code; an unknown code becomes Internal."""
    return BY_CODE.get(code, Internal)(detail, remedy, **extra)
