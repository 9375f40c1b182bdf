"""One separation on a loaded model: looks the file through, separates it as a stream, writes the stems."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from backend.diskroom import room_for
from backend.errors import Validation
from backend.stems.choices import FORMATS, Format
from backend.stems.overlapping import separated
from backend.stems.resampling import resampled
from backend.stems.separator import Samples, Separator, Stopped
from backend.stems.source import Source, measure
from backend.stems.writing import StemFiles

# Called with an event's name and data; True means: stop now.
Emit = Callable[[str, dict[str, Any]], bool]
REPORT_S = 0.1


@dataclass(frozen=True)
class Order:
    """What a job asks: a sound file, the caller's name for it, the options, and where files are made."""

    path: Path
    name: str
    options: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True)
class Made:
    """What came of it; `complete` is False where `emit` said stop. `phases` are seconds."""

    counts: dict[str, int]
    complete: bool
    audio_s: float | None
    phases: dict[str, float]
    chosen: dict[str, Any]


def separate(separator: Separator, order: Order, emit: Emit) -> Made:
    """Makes the files, emitting as engines do. Raises Validation for what is no sound, WorkerCrashed, OSError."""
    return _Job(separator, order, emit).run()


@dataclass
class _Job:
    separator: Separator
    order: Order
    emit: Emit
    phases: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    audio_s: float = 0.0
    told_at: float = 0.0

    def run(self) -> Made:
        form = FORMATS[self.order.options["format"]]
        wanted = self._wanted()
        whole = False
        with contextlib.suppress(Stopped):
            with self._phase("reading"):
                source = measure(self.order.path, self.order.name, self._read)
            _check_form(source, form, self.order.options["format"])
            with self._phase("separating"):
                self._separate(source, form, wanted)
            whole = True
        return Made(self.counts, whole, round(self.audio_s, 6) or None, self.phases, self.chosen)

    def _wanted(self) -> list[str]:
        asked, known = self.order.options["stems"], self.separator.stems
        if unknown := [stem for stem in asked or () if stem not in known]:
            raise Validation(
                f"options.stems: this model makes {', '.join(known)}, and no {', '.join(unknown)}.",
                "Name stems that it makes, or leave stems out for all of them.",
            )
        return [stem for stem in known if not asked or stem in asked]

    def _separate(self, source: Source, form: Format, wanted: list[str]) -> None:
        model = self.separator
        chunk = model.chunk_frames(self.order.options["chunk_seconds"])
        self.chosen |= {
            "stems": wanted,
            "format": self.order.options["format"],
            "seconds": round(source.seconds, 3),
            "rate": source.rate,
            "channels": source.channels,
            "peak": round(source.peak, 4),
            "chunk_seconds": round(chunk / model.rate, 3),
            "model_rate": model.rate,
        }
        names = [f"{stem}.{form.suffix}" for stem in wanted]
        needed = source.frames * source.channels * form.bytes_a_sample * len(wanted)
        self._progress("separating", 0, source.frames, source.rate)
        with (
            room_for(self.order.folder, needed),
            StemFiles(
                [self.order.folder / name for name in names], form, source.rate, source.channels, source.frames
            ) as files,
        ):
            places = [model.stems.index(stem) for stem in wanted]
            done = 0
            for sound, stems in self._stream(source, chunk):
                if len(places) == len(model.stems):
                    files.write(sound, stems)
                else:
                    stems = stems + (sound - stems.sum(0)) / np.float32(len(stems))
                    files.write(stems[places].sum(0), stems[places])
                done += sound.shape[1]
                self.audio_s = done / source.rate
                if self._progress("separating", done, source.frames, source.rate):
                    raise Stopped
        self.counts |= {"frames": source.frames, "channels": source.channels, "stems": len(wanted)}
        self.counts |= {"clipped_samples": files.clipped}
        for name in names:
            self.emit("artifact", {"name": name, "media_type": form.media_type})

    def _stream(self, source: Source, chunk: int) -> Iterator[tuple[Samples, Samples]]:
        """The sound as it was, block by block, and its stems at the same rate."""
        model, held = self.separator, deque[Samples]()

        def heard() -> Iterator[Samples]:
            for block in source.blocks():
                held.append(block)
                yield block

        def stop() -> bool:
            return self.emit("poll", {})

        at_model = resampled(heard(), source.channels, source.rate, model.rate)
        stems = separated(at_model, source.channels, model, chunk, stop)
        count = len(model.stems)
        flat = (block.reshape(count * source.channels, -1) for block in stems)
        waiting = np.zeros((count, source.channels, 0), np.float32)
        for block in resampled(flat, count * source.channels, model.rate, source.rate):
            came = block.reshape(count, source.channels, -1)
            waiting = np.concatenate([waiting, came], 2) if waiting.shape[2] else came
            while held and held[0].shape[1] <= waiting.shape[2]:
                sound = held.popleft()
                yield sound, waiting[:, :, : sound.shape[1]]
                waiting = waiting[:, :, sound.shape[1] :]
        for sound in held:  # rounding of rates may leave some samples without
            missing = max(0, sound.shape[1] - waiting.shape[2])
            waiting = np.pad(waiting, ((0, 0), (0, 0), (0, missing)))
            yield sound, waiting[:, :, : sound.shape[1]]
            waiting = waiting[:, :, sound.shape[1] :]

    def _read(self, done: int, total: int) -> None:
        if self._progress("reading", done, total, None):
            raise Stopped

    def _progress(self, phase: str, done: int, total: int, rate: int | None) -> bool:
        """Tells how far, a few times a second; whether to stop."""
        now = time.perf_counter()
        if 0 < done < total and now - self.told_at < REPORT_S:
            return self.emit("poll", {})
        self.told_at = now
        told = {"done": done, "total": total, "unit": "samples"}
        if rate:
            told = {"done": round(done / rate, 2), "total": round(total / rate, 2), "unit": "seconds"}
        return self.emit("progress", {"phase": phase, **told})

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Notes how long a phase took, also one that was left early."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = time.perf_counter() - began


def _check_form(source: Source, form: Format, name: str) -> None:
    if source.channels > form.channels_most:
        raise Validation(
            f"{source.name} has {source.channels} channels, and {name} holds {form.channels_most}.",
            "Choose the format wav.",
        )
    if form.container == "FLAC" and source.rate > 655_350:
        raise Validation(
            f"{source.name} has {source.rate} samples a second, more than flac holds.", "Choose the format wav."
        )
