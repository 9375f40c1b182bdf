"""One job on a loaded song model: variation after variation or several at once, each checked, cut to length, written.

The same for every engine that makes songs; an engine brings a `Composer`.
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

from backend.common.error_patterns import require_finite
from backend.common.errors import OutOfMemory, Validation
from backend.common.files import require_disk_space
from backend.tasks.audio.files.kinds import KINDS, unfit
from backend.tasks.audio.files.tags import Tags, facts_of
from backend.tasks.audio.files.writer import SoundFiles
from backend.tasks.audio.progress import Cancelled, Emit, ProgressReporter, RenderResult
from backend.tasks.music.controls import seeds_of

REPORT_S = 0.1
SILENT = 1e-4  # of full scale: what is nowhere louder is no song
BYTES_A_SAMPLE = 2
_BLOCK = 1 << 18  # frames
_TITLE = 80  # characters
Floats = NDArray[np.float32]
# Called with phase, done, total, unit; raises Stopped where the caller wants no more of it.
Tell = Callable[[str, float, float, str], None]


@dataclass(frozen=True)
class SongRequest:
    """What a song shall be. `frames` is its length in samples of a channel, `options` are complete."""

    prompt: str
    options: Mapping[str, Any]
    frames: int
    sounds: Mapping[str, Any] = field(default_factory=dict)  # the files that were sent, by name


class Composer(Protocol):
    """A loaded model. `rate` is samples a second."""

    rate: int
    channels: int

    def together(self, wish: SongRequest) -> int:
        """How many songs of this kind may be made at once."""
        ...

    def compose(self, wish: SongRequest, seeds: list[int], tell: Tell) -> Floats:
        """[song, channel, frame], each song with at least `wish.frames`. Raises OutOfMemory with advice, Stopped."""
        ...

    def told(self) -> dict[str, Any]:
        """What it chose by itself, for the receipt."""
        ...


@dataclass(frozen=True)
class Order:
    """What a job asks. `variations` are those to make here, of `options["variations"]` in all, counted from 0."""

    prompt: str | None
    options: Mapping[str, Any]
    seed: int
    folder: Path
    variations: range
    model: str = ""
    licence: str | None = None
    sounds: Mapping[str, Any] = field(default_factory=dict)


def make_songs(composer: Composer, order: Order, emit: Emit) -> RenderResult:
    """Makes the songs and their files, emitting as engines do. Raises Validation, OutOfMemory, WorkerCrashed."""
    return _Job(composer, order, emit, ProgressReporter(emit, REPORT_S)).run()


@dataclass
class _Job:
    composer: Composer
    order: Order
    emit: Emit
    telling: ProgressReporter
    audio_s: float = 0.0
    written: int = 0
    silent: int = 0
    peaks: list[float] = field(default_factory=list)
    at_once: int = 0

    def run(self) -> RenderResult:
        order, composer = self.order, self.composer
        seconds = order.options["seconds"]
        wish = SongRequest(order.prompt or "", order.options, round(seconds * composer.rate), order.sounds)
        formats = self._formats()
        total = order.options["variations"]
        seeds = seeds_of(order.seed, total)
        mine = [(number, seeds[number]) for number in order.variations]
        self.emit("token", {"text": f"{_described(order, [seed for _, seed in mine])} ", "count": 0})
        whole = False
        with contextlib.suppress(Cancelled):
            for done, group in self._groups(wish, mine):
                sounds = self._composed(wish, [seed for _, seed in group], done, len(mine))
                for sound, (number, seed) in zip(sounds, group, strict=True):
                    name = "song" if total == 1 else f"song-{number + 1}"
                    self._write(sound, name, seed, formats)
            whole = True
        if self.silent:
            self.emit("token", {"text": f"{self.silent} of them cannot be heard: the model made silence. ", "count": 0})
        steps = order.options.get("steps")
        counts = {"songs": self.written, "channels": composer.channels, "frames": wish.frames}
        counts |= {"silent": self.silent, **({"steps": steps} if steps else {})}
        return RenderResult(counts, whole, round(self.audio_s, 6) or None, self.telling.phases, self._told(wish, mine))

    def _groups(self, wish: SongRequest, mine: list[tuple[int, int]]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        self.at_once = max(1, min(len(mine), self.composer.together(wish)))
        done = 0
        while done < len(mine):
            group = mine[done : done + self.at_once]
            yield done, group
            done += len(group)

    def _composed(self, wish: SongRequest, seeds: list[int], before: int, total: int) -> Iterator[Floats]:
        """The songs of a group; where the device cannot hold them at once, one after the other."""
        phases = ExitStack()
        try:
            with phases:
                sounds = self.composer.compose(wish, seeds, self._tell(before, len(seeds), total, phases))
        except OutOfMemory:
            if len(seeds) == 1:
                raise
            self.at_once = 1
            for number, seed in enumerate(seeds):
                yield from self._composed(wish, [seed], before + number, total)
            return
        for sound in sounds:
            yield self._checked(sound, wish)

    def _tell(self, before: int, count: int, total: int, phases: ExitStack) -> Tell:
        """Progress over all songs, so that it never goes back: each phase counts each. `phases` holds the open one."""
        current = ""

        def tell(phase: str, done: float, of: float, unit: str) -> None:
            nonlocal current
            if phase != current:
                phases.close()
                phases.enter_context(self.telling.phase(phase))
                current = phase
            whole = round(before * of + count * done, 2)
            if self.telling.progress(phase, whole, round(total * of, 2), unit):
                raise Cancelled

        return tell

    def _checked(self, sound: Floats, wish: SongRequest) -> Floats:
        """Cut to its length. Raises WorkerCrashed for numbers that are none, and for what is too short."""
        assert sound.shape[-1] >= wish.frames, f"{sound.shape[-1]} of {wish.frames} samples were made"
        cut = sound[:, : wish.frames]
        peak = float(np.max(np.abs(cut))) if cut.size else 0.0
        require_finite(peak)
        self.peaks.append(round(peak, 4))
        self.silent += peak < SILENT
        return cut

    def _formats(self) -> list[str]:
        names = list(dict.fromkeys(self.order.options["formats"] or ["wav"]))
        for name in names:
            if why := unfit(name, self.composer.rate, self.composer.channels):
                raise Validation(f"options.formats: {why}.", "Choose wav or flac.", fields=["options.formats"])
        return names

    def _write(self, sound: Floats, name: str, seed: int, formats: list[str]) -> None:
        order, rate = self.order, self.composer.rate
        frames, seconds = sound.shape[1], sound.shape[1] / rate
        targets = [(order.folder / f"{name}.{KINDS[kind].suffix}", kind) for kind in formats]
        tags = Tags((order.prompt or name)[:_TITLE], facts_of(order.model, order.licence, seed))
        with (
            self.telling.phase("write"),
            require_disk_space(order.folder, frames * len(sound) * BYTES_A_SAMPLE * len(targets)),
            SoundFiles(targets, rate, len(sound), tags) as files,
        ):
            for start in range(0, frames, _BLOCK):
                files.write(sound[:, start : start + _BLOCK])
                if self.emit("poll", {}):
                    raise Cancelled
        for path, kind in targets:
            self.emit("artifact", {"name": path.name, "media_type": KINDS[kind].media_type})
        self.audio_s += seconds
        self.written += 1

    def _told(self, wish: SongRequest, mine: list[tuple[int, int]]) -> dict[str, Any]:
        given = {name: value for name, value in self.order.options.items() if value is not None}
        given = {name: value for name, value in given.items() if name not in ("lyrics", "seed", "variations")}
        facts = {"seeds": [seed for _, seed in mine], "rate": self.composer.rate, "peaks": self.peaks}
        return {**given, **facts, "at_once": self.at_once, **self.composer.told()}


def _described(order: Order, seeds: list[int]) -> str:
    """What is going to be made, in words for people."""
    options = order.options
    length = f"{options['seconds']:g} s"
    steps = f", {options['steps']} steps" if options.get("steps") else ""
    seeded = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} variations, seeds {seeds[0]} to {seeds[-1]}"
    return f"{length}{steps}, {seeded}."
