"""The one table that gives each error its HTTP status, and an error as a problem document (RFC 9457)."""

from __future__ import annotations

from backend.common import errors
from backend.common.errors import TouchstoneError
from backend.common.types import Problem

STATUS: dict[type[TouchstoneError], int] = {
    errors.Validation: 422,
    errors.UnsupportedParameter: 422,
    errors.ContextLengthExceeded: 400,
    errors.BadRequest: 400,
    errors.BadJson: 400,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.NotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.RangeNotSatisfiable: 416,
    errors.ForbiddenHost: 421,
    errors.ForbiddenOrigin: 403,
    errors.Unauthorized: 401,
    errors.UnknownDevice: 404,
    errors.UnknownModel: 404,
    errors.UnknownJob: 404,
    errors.DeviceNotReady: 409,
    errors.Quarantined: 409,
    errors.JobFinished: 409,
    errors.JobActive: 409,
    errors.JobCancelled: 409,
    errors.ModelNotDownloaded: 409,
    errors.PlacementTooLow: 409,
    errors.ModelIncompatible: 422,
    errors.ModelBroken: 422,
    errors.QueueFull: 429,
    errors.WorkerCrashed: 502,
    errors.WorkerHung: 504,
    errors.ModelLoadFailed: 502,
    errors.DeviceLost: 503,
    errors.OutOfMemory: 507,
    errors.Interrupted: 503,
    errors.DiskFull: 507,
    errors.RuntimeFailed: 502,
    errors.Internal: 500,
    errors.Configuration: 500,
}


def problem_of(error: TouchstoneError) -> Problem:
    """The problem document of an error."""
    return Problem(
        type=f"urn:touchstone:problem:{error.code}",
        title=error.title,
        status=STATUS[type(error)],
        detail=error.detail,
        code=error.code,
        remedy=error.remedy,
    )
