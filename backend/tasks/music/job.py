"""A music job on a loaded model: complete the options, compose, arrange, render. All engines share this code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.common.engine_api import Emit
from backend.common.errors import Validation
from backend.common.files import require_disk_space
from backend.tasks.audio.files.kinds import KINDS
from backend.tasks.audio.files.tags import provenance_facts
from backend.tasks.audio.progress import Cancelled, ProgressReporter, RenderResult
from backend.tasks.music import tokens
from backend.tasks.music.audio import length_frames
from backend.tasks.music.backing import arrange
from backend.tasks.music.choices import DEFAULT_FORMATS
from backend.tasks.music.composer import compose
from backend.tasks.music.controls import TuneSettings, complete_options, variation_seeds
from backend.tasks.music.decoder import Decoder, Floats, Ints
from backend.tasks.music.instrument_range import fit_to_range
from backend.tasks.music.length import format_meter
from backend.tasks.music.note_player import RATE
from backend.tasks.music.originality import CopyGuard
from backend.tasks.music.rendering import possible_formats, render
from backend.tasks.music.score import Melody, Score

REPORT_INTERVAL_S = 0.05
BYTES_PER_SECOND = RATE * 4  # of a WAV file; no other format is much larger


@dataclass(frozen=True)
class JobSpec:
    """The parameters of a job. Files are written to `folder`; `preface` is the start of the output text.

    `model` and `licence` go into the files' tags. `share` is optional: the variations to compose on this device.
    """

    options: Mapping[str, Any]
    seed: int
    folder: Path
    preface: str = ""
    model: str = ""
    licence: str | None = None
    share: range | None = None


def make_tunes(decoder: Decoder, guard: CopyGuard | None, spec: JobSpec, emit: Emit) -> RenderResult:
    """Compose the tunes, write their files and emit events. A cancel takes effect at the next token or audio block.

    Raises Validation, and the exceptions of `render`.
    """
    return _Job(_CountingDecoder(decoder), guard, spec, emit, ProgressReporter(emit, REPORT_INTERVAL_S)).run()


class _CountingDecoder:
    """A decoder that counts its input tokens, without padding."""

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
    decoder: _CountingDecoder
    guard: CopyGuard | None
    spec: JobSpec
    emit: Emit
    reporter: ProgressReporter
    audio_s: float = 0.0
    formats: tuple[str, ...] = ()
    names: Sequence[str] = ()

    def run(self) -> RenderResult:
        spec = self.spec
        settings = complete_options(spec.options, spec.seed)
        self.formats = _check_formats(spec.options["formats"])
        all_seeds = variation_seeds(spec.seed, spec.options["variations"])
        self.emit("token", {"text": describe_settings(settings, all_seeds, spec.preface), "count": 0})
        numbers = range(len(all_seeds)) if spec.share is None else spec.share
        seeds = all_seeds[numbers.start : numbers.stop]
        self.names = ["tune"] if len(all_seeds) == 1 else [f"tune-{number + 1}" for number in numbers]
        melodies: list[Melody] = []
        complete = False
        with contextlib.suppress(Cancelled):
            with self.reporter.phase("composing"):
                melodies = self._compose(settings, seeds)
            with self.reporter.phase("rendering"):
                self._render(settings, seeds, melodies)
            complete = True
        counts = {
            "tokens": self.decoder.tokens,
            "notes": sum(len(melody.notes) for melody in melodies),
            "bars": sum(melody.bars for melody in melodies),
            "variations": len(seeds),
        }
        return RenderResult(
            counts, complete, round(self.audio_s, 6) or None, self.reporter.phases, chosen_values(settings, seeds)
        )

    def _compose(self, settings: TuneSettings, seeds: list[int]) -> list[Melody]:
        self.reporter.progress("composing", 0, settings.plan.bars * len(seeds), "bars")
        return compose(
            self.decoder,
            settings.plan,
            seeds,
            on_bar=lambda done, total: self.reporter.progress("composing", done, total, "bars"),
            stop=lambda: self.emit("poll", {}),
            guard=self.guard,
        )

    def _render(self, settings: TuneSettings, seeds: list[int], melodies: list[Melody]) -> None:
        """Write the notation files of all tunes first, since they are fast, then the audio."""
        spec = self.spec
        scores = [
            build_score(settings, melody, provenance_facts(spec.model, spec.licence, seed))
            for melody, seed in zip(melodies, seeds, strict=True)
        ]
        audio_formats = tuple(name for name in self.formats if name in KINDS)
        document_formats = tuple(name for name in self.formats if name not in KINDS)
        lengths_s = [length_frames(score, settings.seconds) / RATE if audio_formats else 0.0 for score in scores]
        total_s = sum(lengths_s)
        self.reporter.progress("rendering", 0, round(total_s, 2), "seconds")
        for score, name in zip(scores, self.names, strict=True):
            self._write(score, name, document_formats, settings.seconds, lambda done, total: self.emit("poll", {}))
        for score, name, length_s in zip(scores, self.names, lengths_s, strict=True):
            before_s = self.audio_s

            def on_block(done: int, total: int, before_s: float = before_s, length_s: float = length_s) -> bool:
                rendered_s = min(total_s, before_s + length_s * done / total)
                return self.reporter.progress("rendering", round(rendered_s, 2), round(total_s, 2), "seconds")

            with require_disk_space(spec.folder, len(audio_formats) * int(length_s * BYTES_PER_SECOND)):
                self._write(score, name, audio_formats, settings.seconds, on_block)
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


def describe_settings(settings: TuneSettings, seeds: list[int], preface: str = "") -> str:
    """Return a summary of the tune for the user."""
    plan, values = settings.plan, chosen_values(settings, seeds)
    duration = f", {settings.seconds:g} seconds" if settings.seconds else ""
    bars = f"{plan.bars} bar{'s' if plan.bars > 1 else ''}{duration}"
    tempo = f"about {settings.tempo_bpm:.0f}" if settings.tempo_follows_length else f"{settings.tempo_bpm:g}"
    tune = f"{_capitalise(plan.form)} in {plan.tonic} {plan.mode}, {values['meter']}, {bars} at {tempo} beats a minute"
    sound = f"{settings.instrument}, {_BACKINGS[settings.backing]}"
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} variations from seed {seeds[0]} on"
    omissions = "".join(f" Of the phrase, {sentence}." for sentence in settings.omissions)
    return f"{preface + ' ' if preface else ''}{tune}; {sound}; {seed_text}.{omissions}"


_BACKINGS = {"none": "alone", "chords": "with chords", "bass": "with a bass", "full": "with chords and bass"}


def chosen_values(settings: TuneSettings, seeds: list[int]) -> dict[str, object]:
    """Return the chosen values for the receipt, by the names of the options."""
    plan = settings.plan
    return {
        "form": plan.form,
        "meter": format_meter(plan.meter),
        "key": plan.tonic,
        "mode": plan.mode,
        "bars": plan.bars,
        "seconds": settings.seconds,
        "tempo_bpm": settings.tempo_bpm,
        "instrument": settings.instrument,
        "backing": settings.backing,
        "seeds": seeds,
    }


def _check_formats(requested: list[str] | None) -> tuple[str, ...]:
    """Return the formats to write. Raises Validation for a format whose library is missing."""
    possible = possible_formats()
    if missing := [name for name in requested or () if name not in possible]:
        raise Validation(
            f"options.formats: {', '.join(missing)} is not available, since the package verovio is not installed.",
            f"Choose from {', '.join(possible)}.",
            fields=["options.formats"],
        )
    return tuple(dict.fromkeys(requested)) if requested else tuple(name for name in DEFAULT_FORMATS if name in possible)


def build_score(settings: TuneSettings, melody: Melody, facts: dict[str, str]) -> Score:
    """Return the arranged score. If the tempo follows the length, adjust it so that the tune's pickup fits too."""
    title = f"{_capitalise(melody.form)} in {melody.tonic} {melody.mode}"
    score = arrange(
        fit_to_range(melody, settings.instrument), settings.instrument, settings.backing, settings.tempo_bpm, title
    )
    tempo_bpm = (
        score.tempo_bpm * score.seconds / settings.seconds
        if settings.tempo_follows_length and settings.seconds
        else None
    )
    return replace(score, tempo_bpm=tempo_bpm or score.tempo_bpm, credits=facts)


def _capitalise(form: str) -> str:
    return form[0].upper() + form[1:]
