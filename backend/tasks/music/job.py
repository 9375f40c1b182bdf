"""One music job on a loaded model: completes the controls, composes, arranges, renders. The same for every engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.common.errors import Validation
from backend.common.files import require_disk_space
from backend.tasks.audio.files.kinds import KINDS
from backend.tasks.audio.files.tags import provenance_facts
from backend.tasks.audio.progress import Cancelled, Emit, ProgressReporter, RenderResult
from backend.tasks.music import tokens
from backend.tasks.music.audio import length_frames
from backend.tasks.music.backing import arrange
from backend.tasks.music.choices import DEFAULT_FORMATS
from backend.tasks.music.composer import compose
from backend.tasks.music.controls import Chosen, complete, seeds_of
from backend.tasks.music.decoder import Decoder, Floats, Ints
from backend.tasks.music.instrument_range import within_reach
from backend.tasks.music.length import written
from backend.tasks.music.note_player import RATE
from backend.tasks.music.originality import CopyGuard
from backend.tasks.music.rendering import possible_formats, render
from backend.tasks.music.score import Melody, Score

REPORT_S = 0.05
BYTES_A_SECOND = RATE * 4  # of a WAV file, which FLAC never exceeds by much


@dataclass(frozen=True)
class Order:
    """What a job asks of the model. Files are made in `folder`; the text of the output begins with `preface`.

    `model` and `licence` are for the files' tags. `share` are the variations to make, where others make the rest.
    """

    options: Mapping[str, Any]
    seed: int
    folder: Path
    preface: str = ""
    model: str = ""
    licence: str | None = None
    share: range | None = None


def make(decoder: Decoder, guard: CopyGuard | None, order: Order, emit: Emit) -> RenderResult:
    """Makes the tunes and their files, emitting as engines do; a stop is heard at each token and block of audio."""
    return _Job(_Counting(decoder), guard, order, emit, ProgressReporter(emit, REPORT_S)).run()


class _Counting:
    """A decoder that counts the tokens it was given, padding left out."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.tokens = 0

    def start(self, batch: int, tokens: int) -> None:
        self._decoder.start(batch, tokens)

    def step(self, ids: Ints, sides: Ints) -> Floats:
        self.tokens += int((ids != tokens.PAD).sum())
        return self._decoder.step(ids, sides)


@dataclass
class _Job:
    decoder: _Counting
    guard: CopyGuard | None
    spec: Order
    emit: Emit
    reporter: ProgressReporter
    audio_s: float = 0.0
    formats: tuple[str, ...] = ()
    names: Sequence[str] = ()

    def run(self) -> RenderResult:
        order = self.spec
        chosen = complete(order.options, order.seed)
        self.formats = _formats(order.options["formats"])
        all_seeds = seeds_of(order.seed, order.options["variations"])
        self.emit("token", {"text": described(chosen, all_seeds, order.preface), "count": 0})
        numbers = range(len(all_seeds)) if order.share is None else order.share
        seeds = all_seeds[numbers.start : numbers.stop]
        self.names = ["tune"] if len(all_seeds) == 1 else [f"tune-{number + 1}" for number in numbers]
        melodies: list[Melody] = []
        whole = False
        with contextlib.suppress(Cancelled):
            with self.reporter.phase("composing"):
                melodies = self._compose(chosen, seeds)
            with self.reporter.phase("rendering"):
                self._render(chosen, seeds, melodies)
            whole = True
        counts = {
            "tokens": self.decoder.tokens,
            "notes": sum(len(melody.notes) for melody in melodies),
            "bars": sum(melody.bars for melody in melodies),
            "variations": len(seeds),
        }
        return RenderResult(counts, whole, round(self.audio_s, 6) or None, self.reporter.phases, told(chosen, seeds))

    def _compose(self, chosen: Chosen, seeds: list[int]) -> list[Melody]:
        self.reporter.progress("composing", 0, chosen.plan.bars * len(seeds), "bars")
        return compose(
            self.decoder,
            chosen.plan,
            seeds,
            on_bar=lambda done, total: self.reporter.progress("composing", done, total, "bars"),
            stop=lambda: self.emit("poll", {}),
            guard=self.guard,
        )

    def _render(self, chosen: Chosen, seeds: list[int], melodies: list[Melody]) -> None:
        """What is written comes first for all, since it takes no time."""
        order = self.spec
        scores = [
            scored(chosen, melody, provenance_facts(order.model, order.licence, seed))
            for melody, seed in zip(melodies, seeds, strict=True)
        ]
        heard = tuple(name for name in self.formats if name in KINDS)
        written = tuple(name for name in self.formats if name not in KINDS)
        lengths_s = [length_frames(score, chosen.seconds) / RATE if heard else 0.0 for score in scores]
        total_s = sum(lengths_s)
        self.reporter.progress("rendering", 0, round(total_s, 2), "seconds")
        for score, name in zip(scores, self.names, strict=True):
            self._write(score, name, written, chosen.seconds, lambda done, total: self.emit("poll", {}))
        for score, name, length_s in zip(scores, self.names, lengths_s, strict=True):
            before_s = self.audio_s

            def on_block(done: int, total: int, before_s: float = before_s, length_s: float = length_s) -> bool:
                heard_s = min(total_s, before_s + length_s * done / total)
                return self.reporter.progress("rendering", round(heard_s, 2), round(total_s, 2), "seconds")

            with require_disk_space(order.folder, len(heard) * int(length_s * BYTES_A_SECOND)):
                self._write(score, name, heard, chosen.seconds, on_block)
            self.audio_s += length_s

    def _write(
        self,
        score: Score,
        name: str,
        formats: tuple[str, ...],
        seconds: float | None,
        on_progress: Callable[[int, int], bool],
    ) -> None:
        for file, media_type in render(score, self.spec.folder, formats, seconds, on_progress, name):
            self.emit("artifact", {"name": file, "media_type": media_type})


def described(chosen: Chosen, seeds: list[int], preface: str = "") -> str:
    """What is going to be made, in sentences for people."""
    plan, facts = chosen.plan, told(chosen, seeds)
    lasting = f", {chosen.seconds:g} seconds" if chosen.seconds else ""
    bars = f"{plan.bars} bar{'s' if plan.bars > 1 else ''}{lasting}"
    tempo = f"about {chosen.tempo_bpm:.0f}" if chosen.follows else f"{chosen.tempo_bpm:g}"
    what = f"{_titled(plan.form)} in {plan.tonic} {plan.mode}, {facts['meter']}, {bars} at {tempo} beats a minute"
    played = f"{chosen.instrument}, {_BACKINGS[chosen.backing]}"
    seeded = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} variations from seed {seeds[0]} on"
    left_out = "".join(f" Of the phrase, {sentence}." for sentence in chosen.left_out)
    return f"{preface + ' ' if preface else ''}{what}; {played}; {seeded}.{left_out}"


_BACKINGS = {"none": "alone", "chords": "with chords", "bass": "with a bass", "full": "with chords and bass"}


def told(chosen: Chosen, seeds: list[int]) -> dict[str, Any]:
    """What was chosen, as receipts show it, under the names of the options."""
    plan = chosen.plan
    return {
        "form": plan.form,
        "meter": written(plan.meter),
        "key": plan.tonic,
        "mode": plan.mode,
        "bars": plan.bars,
        "seconds": chosen.seconds,
        "tempo_bpm": chosen.tempo_bpm,
        "instrument": chosen.instrument,
        "backing": chosen.backing,
        "seeds": seeds,
    }


def _formats(asked: list[str] | None) -> tuple[str, ...]:
    """What is written. Raises Validation for what was asked for and cannot be made here."""
    possible = possible_formats()
    if missing := [name for name in asked or () if name not in possible]:
        raise Validation(
            f"options.formats: {', '.join(missing)} cannot be made here, where its library is missing.",
            f"Choose of {', '.join(possible)}.",
            fields=["options.formats"],
        )
    return tuple(dict.fromkeys(asked)) if asked else tuple(name for name in DEFAULT_FORMATS if name in possible)


def scored(chosen: Chosen, melody: Melody, facts: dict[str, str]) -> Score:
    """Where the tempo follows the seconds, it fills them together with the tune's own pickup."""
    title = f"{_titled(melody.form)} in {melody.tonic} {melody.mode}"
    score = arrange(within_reach(melody, chosen.instrument), chosen.instrument, chosen.backing, chosen.tempo_bpm, title)
    tempo_bpm = score.tempo_bpm * score.seconds / chosen.seconds if chosen.follows and chosen.seconds else None
    return replace(score, tempo_bpm=tempo_bpm or score.tempo_bpm, credits=facts)


def _titled(form: str) -> str:
    return form[0].upper() + form[1:]
