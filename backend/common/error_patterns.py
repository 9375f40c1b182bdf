"""Classify error texts of libraries and drivers by the table of known errors. Server and children both use it."""

from __future__ import annotations

import math

from backend.common.errors import WorkerCrashed
from backend.common.known_errors.table import code_of


def classify_error_text(text: str) -> str | None:
    """Return the error code `device_lost` or `out_of_memory`, None if the text shows neither."""
    return code_of(text)


def require_finite(highest: float) -> None:
    """Raise WorkerCrashed if a model's logits are not finite.

    `highest`: the maximum of the logits, which is NaN or infinite if any of them is. A device produces such logits
    after a fault, so the worker is replaced and the device counts it as a crash.
    """
    if not math.isfinite(highest):
        raise WorkerCrashed(
            "The model produced NaN or infinite logits, so no token can be sampled.",
            "Retry the job: a new worker runs it. If it fails again, refresh the devices, which probes it again.",
        )
