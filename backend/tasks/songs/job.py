"""A song job on a loaded model: generate variations in batches, check them, trim them to length, and write files.

All song engines share this code; each engine provides a `Composer`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from backend.common.engine_api import Emit
from backend.common.error_patterns import require_finite
from backend.common.errors import OutOfMemory, Validation
from backend.common.files import require_disk_space
from backend.tasks.audio.files.kinds import KINDS, why_unsupported
from backend.tasks.audio.files.tags import Tags, provenance_facts
from backend.tasks.audio.files.writer import SoundFiles
from backend.tasks.audio.progress import Cancelled, ProgressReporter, RenderResult
from backend.tasks.music.controls import variation_seeds

REPORT_INTERVAL_S = 0.1
SILENCE_PEAK = 1e-4  # of full scale; audio with a lower peak counts as silent
BYTES_PER_SAMPLE = 2
_BLOCK_FRAMES = 1 << 18
_MAX_TITLE_CHARS = 80
Floats = NDArray[np.float32]
# The progress callback: takes phase, done, total and unit. Raises Cancelled if the job was cancelled.
ProgressCallback = Callable[[str, float, float, str], None]


@dataclass(frozen=True)
class SongRequest:
    """The song to generate. `frames` is its length in samples per channel; `options` include all defaults."""

    prompt: str
    options: Mapping[str, Any]
    frames: int
    sounds: Mapping[str, Any] = field(default_factory=dict)  # uploaded audio files, by input name


class Composer(Protocol):
    """A loaded song model. `rate` is its sample rate in Hz."""

    rate: int
    channels: int

    def max_batch(self, request: SongRequest) -> int:
        """Return the largest batch: how many songs with this request fit into memory at once."""
        ...

    def compose(self, request: SongRequest, seeds: list[int], report: ProgressCallback) -> Floats:
        """Return audio [song, channel, frame] with at least `request.frames` frames per song.

        Raises OutOfMemory with a remedy, Cancelled.
        """
        ...

    def receipt_values(self) -> Mapping[str, object]:
        """Return the values that the engine chose, for the receipt."""
        ...


@dataclass(frozen=True)
class JobSpec:
    """The parameters of a job. `variations` are the indexes to generate here, out of `options["variations"]`."""

    prompt: str | None
    options: Mapping[str, Any]
    seed: int
    folder: Path
    variations: range
    model: str = ""
    licence: str | None = None
    sounds: Mapping[str, Any] = field(default_factory=dict)


def make_songs(composer: Composer, spec: JobSpec, emit: Emit) -> RenderResult:
    """Generate the songs, write their files and emit events. Raises Validation, OutOfMemory, WorkerCrashed."""
    return _Job(composer, spec, emit, ProgressReporter(emit, REPORT_INTERVAL_S)).run()


@dataclass
class _Job:
    composer: Composer
    spec: JobSpec
    emit: Emit
    reporter: ProgressReporter
    audio_s: float = 0.0
    written_count: int = 0
    silent_count: int = 0
    peaks: list[float] = field(default_factory=list)
    batch_size: int = 0

    def run(self) -> RenderResult:
        order, composer = self.spec, self.composer
        seconds = order.options["seconds"]
        request = SongRequest(order.prompt or "", order.options, round(seconds * composer.rate), order.sounds)
        formats = self._formats()
        total = order.options["variations"]
        seeds = variation_seeds(order.seed, total)
        batch_seeds = [(number, seeds[number]) for number in order.variations]
        self.emit("token", {"text": f"{_describe(order, [seed for _, seed in batch_seeds])} ", "count": 0})
        complete = False
        with contextlib.suppress(Cancelled):
            for done, group in self._batches(request, batch_seeds):
                sounds = self._compose_batch(request, [seed for _, seed in group], done, len(batch_seeds))
                for sound, (number, seed) in zip(sounds, group, strict=True):
                    name = "song" if total == 1 else f"song-{number + 1}"
                    self._write(sound, name, seed, formats)
            complete = True
        if self.silent_count:
            self.emit("token", {"text": f"{self.silent_count} of the songs are silent. ", "count": 0})
        steps = order.options.get("steps")
        counts = {"songs": self.written_count, "channels": composer.channels, "frames": request.frames}
        counts |= {"silent": self.silent_count, **({"steps": steps} if steps else {})}
        return RenderResult(
            counts,
            complete,
            round(self.audio_s, 6) or None,
            self.reporter.phases,
            self._chosen_values(request, batch_seeds),
        )

    def _batches(
        self, request: SongRequest, numbered_seeds: list[tuple[int, int]]
    ) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        self.batch_size = max(1, min(len(numbered_seeds), self.composer.max_batch(request)))
        done = 0
        while done < len(numbered_seeds):
            group = numbered_seeds[done : done + self.batch_size]
            yield done, group
            done += len(group)

    def _compose_batch(self, request: SongRequest, seeds: list[int], first: int, total: int) -> Iterator[Floats]:
        """Yield the songs of a batch. After OutOfMemory, retry them one by one."""
        phases = ExitStack()
        try:
            with phases:
                sounds = self.composer.compose(
                    request, seeds, self._progress_callback(first, len(seeds), total, phases)
                )
        except OutOfMemory:
            if len(seeds) == 1:
                raise
            self.batch_size = 1
            for number, seed in enumerate(seeds):
                yield from self._compose_batch(request, [seed], first + number, total)
            return
        for sound in sounds:
            yield self._trim(sound, request)

    def _progress_callback(self, first: int, count: int, total: int, phases: ExitStack) -> ProgressCallback:
        """Return a callback that reports progress over all songs of the job, so that it never decreases.

        `first` is the number of finished songs, `count` the batch size. `phases` holds the running phase.
        """
        current = ""

        def report(phase: str, done: float, of: float, unit: str) -> None:
            nonlocal current
            if phase != current:
                phases.close()
                phases.enter_context(self.reporter.phase(phase))
                current = phase
            overall = round(first * of + count * done, 2)
            if self.reporter.progress(phase, overall, round(total * of, 2), unit):
                raise Cancelled

        return report

    def _trim(self, sound: Floats, request: SongRequest) -> Floats:
        """Return the song trimmed to its length. Raises WorkerCrashed for NaN or infinite samples."""
        assert sound.shape[-1] >= request.frames, f"the model generated {sound.shape[-1]} of {request.frames} samples"
        cut = sound[:, : request.frames]
        peak = float(np.max(np.abs(cut))) if cut.size else 0.0
        require_finite(peak)
        self.peaks.append(round(peak, 4))
        self.silent_count += peak < SILENCE_PEAK
        return cut

    def _formats(self) -> list[str]:
        names = list(dict.fromkeys(self.spec.options["formats"] or ["wav"]))
        for name in names:
            if reason := why_unsupported(name, self.composer.rate, self.composer.channels):
                raise Validation(f"options.formats: {reason}.", "Choose wav or flac.", fields=["options.formats"])
        return names

    def _write(self, sound: Floats, name: str, seed: int, formats: list[str]) -> None:
        order, rate = self.spec, self.composer.rate
        frames, seconds = sound.shape[1], sound.shape[1] / rate
        targets = [(order.folder / f"{name}.{KINDS[kind].suffix}", kind) for kind in formats]
        tags = Tags((order.prompt or name)[:_MAX_TITLE_CHARS], provenance_facts(order.model, order.licence, seed))
        with (
            self.reporter.phase("write"),
            require_disk_space(order.folder, frames * len(sound) * BYTES_PER_SAMPLE * len(targets)),
            SoundFiles(targets, rate, len(sound), tags) as files,
        ):
            for start in range(0, frames, _BLOCK_FRAMES):
                files.write(sound[:, start : start + _BLOCK_FRAMES])
                if self.emit("poll", {}):
                    raise Cancelled
        for path, kind in targets:
            self.emit("artifact", {"name": path.name, "media_type": KINDS[kind].media_type})
        self.audio_s += seconds
        self.written_count += 1

    def _chosen_values(self, request: SongRequest, numbered_seeds: list[tuple[int, int]]) -> dict[str, object]:
        options = {name: value for name, value in self.spec.options.items() if value is not None}
        options = {name: value for name, value in options.items() if name not in ("lyrics", "seed", "variations")}
        facts = {"seeds": [seed for _, seed in numbered_seeds], "rate": self.composer.rate, "peaks": self.peaks}
        return {**options, **facts, "at_once": self.batch_size, **self.composer.receipt_values()}


def _describe(spec: JobSpec, seeds: list[int]) -> str:
    """Return a summary of the job for the user."""
    options = spec.options
    length = f"{options['seconds']:g} s"
    steps = f", {options['steps']} steps" if options.get("steps") else ""
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} variations, seeds {seeds[0]} to {seeds[-1]}"
    return f"{length}{steps}, {seed_text}."
