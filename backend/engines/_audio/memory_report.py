"""What songs take of a device's memory beside the weights: as torch counts it, and in words where it is too little."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from backend.common import error_patterns
from backend.common.errors import DeviceLost, ModelBroken, ModelLoadFailed, OutOfMemory, TouchstoneError

if TYPE_CHECKING:
    from backend.devices._mechanisms.torch_placement import TorchPlace
    from backend.engines._audio.memory_placement import Room

_SHARE = 0.9  # of the free memory, that may be advised


class SongMemory:
    """The memory of one loaded model. `visiting` are bytes of weights that are there while it computes alone."""

    def __init__(self, place: TorchPlace, room: Room, visiting: int = 0) -> None:
        self._place, self._room, self._visiting = place, room, visiting
        # torch's module for the card, where it counts what is allocated.
        module = None if place.is_processor else getattr(place.torch, place.ground.type, None)
        self._card: Any = module if hasattr(module, "reset_peak_memory_stats") else None
        self._before: int | None = None
        self.bytes_a_second: float | None = None  # of one song, as the last one took
        self.peak: int | None = None

    def begin(self) -> None:
        """Songs are about to be made."""
        self._before = self._place.allocated_bytes()
        if self._card is not None:
            self._card.reset_peak_memory_stats(self._place.device)

    def end(self, seconds: float) -> None:
        """So many seconds of sound were made at once."""
        if self._card is not None and self._before is not None:
            self.peak = int(self._card.max_memory_allocated(self._place.device))
            self.bytes_a_second = max(0, self.peak - self._before - self._visiting) / seconds

    def empty(self) -> None:
        """Gives back what a failed attempt held. Its exception must be gone."""
        gc.collect()
        if self._card is not None:
            self._card.empty_cache()

    def told(self) -> dict[str, Any]:
        """For the receipt."""
        measured = {} if self.peak is None else {"card_peak_bytes": self.peak}
        return {"number": self._room.number, "memory": self._room.words, **measured}

    def advice(self, seconds: float, songs: int, told: str, a_second: float | None, free: int | None) -> OutOfMemory:
        """What would fit, by what a song takes for a second and what is free, as far as they are known."""
        room = "" if free is None else f"; {free / 1e9:.1f} GB are free beside the model ({self._room.words})"
        fits, needs = seconds / 2, ""
        if free is not None and a_second:
            fits, needs = (
                min(fits, _SHARE * free / a_second),
                f", which takes about {songs * seconds * a_second / 1e9:.1f} GB",
            )
        count = "" if songs == 1 else f"{songs} songs of "
        return OutOfMemory(
            f"{count}{seconds:g} s do not fit into the memory of {self._place.id}{needs}{room}. {told}",
            f"Ask for {max(1.0, fits):.0f} s or less, one variation at a time, or choose a device with more memory.",
        )


def want_of_memory(error: BaseException) -> str | None:
    """The library's words, if they say that memory did not suffice."""
    told = f"{type(error).__name__}: {error}".strip()[:300]
    return (
        told if isinstance(error, MemoryError) or error_patterns.classify_error_text(told) == "out_of_memory" else None
    )


def load_error(title: str, words: str, error: Exception) -> TouchstoneError:
    """What it means that a library could not load a model. `words` say what memory it was given."""
    told = f"{type(error).__name__}: {error}".strip()[:600]
    if want_of_memory(error):
        return OutOfMemory(
            f"{title} does not fit into memory ({words}): {told}",
            "Close what else uses that memory, unload other models, or choose a device with more.",
        )
    if error_patterns.classify_error_text(told) == "device_lost":
        return DeviceLost(f"The device was lost: {told}", "Run the job again; if it repeats, refresh the device.")
    if isinstance(error, ImportError):
        return ModelLoadFailed(
            f"{title} needs a package that this runtime lacks: {told}",
            "Update the runtime: python -m backend runtimes update NAME.",
        )
    if isinstance(error, (ValueError, KeyError, TypeError, OSError)) or "mismatch" in told:  # of weights' shapes
        return ModelBroken(
            f"{title} could not be loaded: {told}", "Fetch the whole folder again, or choose another model."
        )
    return ModelLoadFailed(f"{title} could not be loaded: {told}", "Try another device or model.")
