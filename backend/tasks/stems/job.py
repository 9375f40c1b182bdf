"""A separation job on a loaded model: validate the file, separate it as a stream, write the stems."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from backend.common.engine_api import Emit
from backend.common.errors import Validation
from backend.common.files import require_disk_space
from backend.tasks.audio.files.tags import Tags, provenance_facts
from backend.tasks.audio.progress import Cancelled, ProgressReporter, RenderResult
from backend.tasks.stems.audio_source import Source, measure
from backend.tasks.stems.choices import FORMATS, Format
from backend.tasks.stems.overlap import separate_stream
from backend.tasks.stems.resampling import resample_stream
from backend.tasks.stems.separator import Samples, Separator
from backend.tasks.stems.writer import StemFiles

REPORT_INTERVAL_S = 0.1


@dataclass(frozen=True)
class JobSpec:
    """The parameters of a job: the audio file, its display name, the options, and the output folder."""

    path: Path
    name: str
    options: Mapping[str, Any]
    folder: Path
    model: str = ""
    licence: str | None = None


def separate(separator: Separator, spec: JobSpec, emit: Emit) -> RenderResult:
    """Write the stems and emit events. Raises Validation for invalid audio, WorkerCrashed, OSError."""
    return _Job(separator, spec, emit, ProgressReporter(emit, REPORT_INTERVAL_S)).run()


@dataclass
class _Job:
    separator: Separator
    spec: JobSpec
    emit: Emit
    reporter: ProgressReporter
    counts: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, object] = field(default_factory=dict)
    audio_s: float = 0.0

    def run(self) -> RenderResult:
        file_format = FORMATS[self.spec.options["format"]]
        stems = self._stems_to_write()
        complete = False
        with contextlib.suppress(Cancelled):
            with self.reporter.phase("reading"):
                source = measure(self.spec.path, self.spec.name, self._report_reading)
            _check_format(source, file_format, self.spec.options["format"])
            with self.reporter.phase("separating"):
                self._separate(source, file_format, stems)
            complete = True
        return RenderResult(self.counts, complete, round(self.audio_s, 6) or None, self.reporter.phases, self.chosen)

    def _stems_to_write(self) -> list[str]:
        requested, available = self.spec.options["stems"], self.separator.stems
        if unknown := [stem for stem in requested or () if stem not in available]:
            raise Validation(
                f"options.stems: this model separates {', '.join(available)}, not {', '.join(unknown)}.",
                "Choose stems that the model separates, or omit options.stems for all of them.",
            )
        return [stem for stem in available if not requested or stem in requested]

    def _separate(self, source: Source, file_format: Format, stem_names: list[str]) -> None:
        model = self.separator
        chunk = model.chunk_frames(self.spec.options["chunk_seconds"])
        self.chosen |= {
            "stems": stem_names,
            "format": self.spec.options["format"],
            "seconds": round(source.seconds, 3),
            "rate": source.rate,
            "channels": source.channels,
            "peak": round(source.peak, 4),
            "chunk_seconds": round(chunk / model.rate, 3),
            "model_rate": model.rate,
        }
        names = [f"{stem}.{file_format.suffix}" for stem in stem_names]
        facts = provenance_facts(self.spec.model, self.spec.licence, None)
        tags = [Tags(f"{self.spec.name}: {stem}", facts, action="Separated") for stem in stem_names]
        needed = source.frames * source.channels * file_format.bytes_per_sample * len(stem_names)
        self._report_separating(0, source)
        with (
            require_disk_space(self.spec.folder, needed),
            StemFiles(
                [self.spec.folder / name for name in names],
                file_format,
                source.rate,
                source.channels,
                source.frames,
                tags,
            ) as files,
        ):
            indexes = [model.stems.index(stem) for stem in stem_names]
            done = 0
            for sound, stems in self._stream(source, chunk):
                if len(indexes) == len(model.stems):
                    files.write(sound, stems)
                else:
                    stems = stems + (sound - stems.sum(0)) / np.float32(len(stems))
                    files.write(stems[indexes].sum(0), stems[indexes])
                done += sound.shape[1]
                self.audio_s = done / source.rate
                self._report_separating(done, source)
        self.counts |= {"frames": source.frames, "channels": source.channels, "stems": len(stem_names)}
        self.counts |= {"clipped_samples": files.clipped}
        for name in names:
            self.emit("artifact", {"name": name, "media_type": file_format.media_type})

    def _stream(self, source: Source, chunk: int) -> Iterator[tuple[Samples, Samples]]:
        """Yield blocks of the input and its stems [stem, channel, frame], both at the input's sample rate."""
        model, blocks = self.separator, deque[Samples]()

        def read_blocks() -> Iterator[Samples]:
            for block in source.blocks():
                blocks.append(block)
                yield block

        def stop() -> bool:
            return self.emit("poll", {})

        at_model = resample_stream(read_blocks(), source.channels, source.rate, model.rate)
        stems = separate_stream(at_model, source.channels, model, chunk, stop)
        count = len(model.stems)
        flat = (block.reshape(count * source.channels, -1) for block in stems)
        pending = np.zeros((count, source.channels, 0), np.float32)
        for block in resample_stream(flat, count * source.channels, model.rate, source.rate):
            block_stems = block.reshape(count, source.channels, -1)
            pending = np.concatenate([pending, block_stems], 2) if pending.shape[2] else block_stems
            while blocks and blocks[0].shape[1] <= pending.shape[2]:
                sound = blocks.popleft()
                yield sound, pending[:, :, : sound.shape[1]]
                pending = pending[:, :, sound.shape[1] :]
        for sound in blocks:  # rounding in the resampler may leave the last samples without stems
            missing = max(0, sound.shape[1] - pending.shape[2])
            pending = np.pad(pending, ((0, 0), (0, 0), (0, missing)))
            yield sound, pending[:, :, : sound.shape[1]]
            pending = pending[:, :, sound.shape[1] :]

    def _report_reading(self, done: int, total: int) -> None:
        if self.reporter.progress("reading", done, total, "samples"):
            raise Cancelled

    def _report_separating(self, frames: int, source: Source) -> None:
        done, total = (round(count / source.rate, 2) for count in (frames, source.frames))
        if self.reporter.progress("separating", done, total, "seconds"):
            raise Cancelled


def _check_format(source: Source, file_format: Format, name: str) -> None:
    if source.channels > file_format.max_channels:
        raise Validation(
            f"{source.name} has {source.channels} channels; {name} supports at most {file_format.max_channels}.",
            "Set options.format to wav.",
        )
    if file_format.container == "FLAC" and source.rate > 655_350:
        raise Validation(
            f"{source.name} has a sample rate of {source.rate} Hz, which flac does not support.",
            "Set options.format to wav.",
        )
