"""One separation on a loaded model: looks the file through, separates it as a stream, writes the stems."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from backend.common.errors import Validation
from backend.common.files import require_disk_space
from backend.tasks.audio.files.tags import Tags, facts_of
from backend.tasks.audio.progress import Cancelled, Emit, ProgressReporter, RenderResult
from backend.tasks.stems.audio_source import Source, measure
from backend.tasks.stems.choices import FORMATS, Format
from backend.tasks.stems.overlap import separated
from backend.tasks.stems.resampling import resampled
from backend.tasks.stems.separator import Samples, Separator
from backend.tasks.stems.writer import StemFiles

REPORT_S = 0.1


@dataclass(frozen=True)
class Order:
    """What a job asks: a sound file, the caller's name for it, the options, and where files are made."""

    path: Path
    name: str
    options: Mapping[str, Any]
    folder: Path
    model: str = ""
    licence: str | None = None


def separate(separator: Separator, order: Order, emit: Emit) -> RenderResult:
    """Makes the files, emitting as engines do. Raises Validation for what is no sound, WorkerCrashed, OSError."""
    return _Job(separator, order, emit, ProgressReporter(emit, REPORT_S)).run()


@dataclass
class _Job:
    separator: Separator
    order: Order
    emit: Emit
    telling: ProgressReporter
    counts: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    audio_s: float = 0.0

    def run(self) -> RenderResult:
        form = FORMATS[self.order.options["format"]]
        wanted = self._wanted()
        whole = False
        with contextlib.suppress(Cancelled):
            with self.telling.phase("reading"):
                source = measure(self.order.path, self.order.name, self._read)
            _check_form(source, form, self.order.options["format"])
            with self.telling.phase("separating"):
                self._separate(source, form, wanted)
            whole = True
        return RenderResult(self.counts, whole, round(self.audio_s, 6) or None, self.telling.phases, self.chosen)

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
        facts = facts_of(self.order.model, self.order.licence, None)
        tags = [Tags(f"{self.order.name}: {stem}", facts, made="Separated") for stem in wanted]
        needed = source.frames * source.channels * form.bytes_a_sample * len(wanted)
        self._separated(0, source)
        with (
            require_disk_space(self.order.folder, needed),
            StemFiles(
                [self.order.folder / name for name in names], form, source.rate, source.channels, source.frames, tags
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
                self._separated(done, source)
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
        if self.telling.progress("reading", done, total, "samples"):
            raise Cancelled

    def _separated(self, frames: int, source: Source) -> None:
        done, total = (round(count / source.rate, 2) for count in (frames, source.frames))
        if self.telling.progress("separating", done, total, "seconds"):
            raise Cancelled


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
