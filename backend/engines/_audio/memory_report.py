"""The memory that songs take on a device beyond the weights, and the errors that report it."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend.common import error_patterns
from backend.common.commands import command
from backend.common.errors import DeviceLost, ModelBroken, ModelLoadFailed, OutOfMemory, TouchstoneError
from backend.engines._memory_errors import does_not_fit, out_of_memory_message

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace
    from backend.engines._audio.memory_placement import MemoryPlacement

_SHARE = 0.9  # of the free memory that the remedy may suggest to use


class SongMemory:
    """The memory of one loaded model. `visiting`: bytes of weights that are on the device only while a job runs."""

    def __init__(self, place: TorchPlace, memory_placement: MemoryPlacement, visiting: int = 0) -> None:
        self._place, self._memory_placement, self._visiting = place, memory_placement, visiting
        # torch's module for the card, where it counts what is allocated.
        module = None if place.is_processor else getattr(place.torch, place.access.type, None)
        self._card: Any = module if hasattr(module, "reset_peak_memory_stats") else None
        self._before: int | None = None
        self.bytes_a_second: float | None = None  # of one song, as the last one took
        self.peak: int | None = None

    def begin(self) -> None:
        """Start measuring, before songs are generated."""
        self._before = self._place.allocated_bytes()
        if self._card is not None:
            self._card.reset_peak_memory_stats(self._place.device)

    def end(self, seconds: float) -> None:
        """Finish measuring. `seconds` is the total length of the songs that were generated at once."""
        if self._card is not None and self._before is not None:
            self.peak = int(self._card.max_memory_allocated(self._place.device))
            self.bytes_a_second = max(0, self.peak - self._before - self._visiting) / seconds

    def empty(self) -> None:
        """Release the memory of a failed attempt. Its exception must have been dropped."""
        gc.collect()
        if self._card is not None:
            self._card.empty_cache()

    def receipt_values(self) -> Mapping[str, object]:
        """Return the facts for the receipt."""
        measured = {} if self.peak is None else {"card_peak_bytes": self.peak}
        return {"number": self._memory_placement.dtype, "memory": self._memory_placement.description, **measured}

    def advice(self, seconds: float, songs: int, message: str, a_second: float | None, free: int | None) -> OutOfMemory:
        """Return the error. It suggests a length that fits, from the measured bytes per second and the free memory."""
        available = (
            ""
            if free is None
            else f"; {free / 1e9:.1f} GB available after loading the model ({self._memory_placement.description})"
        )
        fits, needs = seconds / 2, ""
        if free is not None and a_second:
            fits, needs = (
                min(fits, _SHARE * free / a_second),
                f", which takes about {songs * seconds * a_second / 1e9:.1f} GB",
            )
        count = "" if songs == 1 else f"{songs} songs of "
        return OutOfMemory(
            f"{count}{seconds:g} s do not fit into the memory of {self._place.id}{needs}{available}. {message}",
            f"Ask for {max(1.0, fits):.0f} s or less, one variation at a time, or choose a device with more memory.",
        )


def load_error(title: str, memory: str, error: Exception) -> TouchstoneError:
    """Return the error for an exception while a model is loaded. `memory` describes the memory it was given."""
    if no_memory := out_of_memory_message(error):
        return does_not_fit(f"{title} ({memory})", no_memory)
    message = f"{type(error).__name__}: {error}".strip()[:600]
    if error_patterns.classify_error_text(message) == "device_lost":
        return DeviceLost(f"The device was lost: {message}", "Rerun the job; if the error repeats, refresh the device.")
    if isinstance(error, ImportError):
        return ModelLoadFailed(
            f"{title} needs a package that this runtime lacks: {message}",
            f"Update the runtime: {command('runtimes update NAME')}.",
        )
    if isinstance(error, (ValueError, KeyError, TypeError, OSError)) or "mismatch" in message:  # of weights' shapes
        return ModelBroken(
            f"{title} could not be loaded: {message}", "Download the complete folder again, or choose another model."
        )
    return ModelLoadFailed(f"{title} could not be loaded: {message}", "Try another device or model.")
