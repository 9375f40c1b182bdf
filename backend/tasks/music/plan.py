"""What a tune shall be: the controls that the melody model takes, and how the bars asked for are laid out in sections.

A set of tunes is several tunes one after another, as players join them.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.tasks.music.score import TICKS_PER_WHOLE, Note

MAX_BARS = 256
MAX_VARIATIONS = 16

MODES = ("major", "minor", "dorian", "mixolydian")
TONICS = {
    "C": 0, "C#": 1, "Db": 1, "D": 2, "D#": 3, "Eb": 3, "E": 4, "F": 5, "F#": 6,
    "Gb": 6, "G": 7, "G#": 8, "Ab": 8, "A": 9, "A#": 10, "Bb": 10, "B": 11, "Cb": 11,
}  # fmt: skip

# Each form with the metres that have tunes behind them in the training data, the usual one first.
FORMS: dict[str, tuple[tuple[int, int], ...]] = {
    "jig": ((6, 8),),
    "reel": ((4, 4),),
    "hornpipe": ((4, 4),),
    "slip jig": ((9, 8),),
    "strathspey": ((4, 4),),
    "march": ((4, 4), (2, 4), (6, 8)),
    "air": ((4, 4), (3, 4), (6, 8), (2, 4)),
}


@dataclass(frozen=True)
class Opening:
    """A phrase to continue: its notes in ticks from the start of the phrase, as MIDI pitches in the plan's key.

    The phrase may end within a bar. `pickup_ticks` is the part before its first barline.
    """

    pickup_ticks: int
    notes: tuple[Note, ...]
    end: int


@dataclass(frozen=True)
class Section:
    """Bars as written, and how often they are heard."""

    bars: int
    times: int


@dataclass(frozen=True)
class Plan:
    """One tune, or a set of tunes, to compose; variations share a plan and differ in their seeds.

    `bars` counts full bars as heard, repeats played, 1 to 256. `pickup` says whether notes may come before the first
    bar. Raises ValueError for what no caller may ask for (callers refuse it before, with a remedy).
    """

    form: str
    meter: tuple[int, int]
    mode: str
    tonic: str
    bars: int
    pickup: bool = True
    temperature: float = 1.0
    top_p: float = 0.95
    opening: Opening | None = None

    def __post_init__(self) -> None:
        if self.meter not in FORMS.get(self.form, ()):
            raise ValueError(f"no tunes of form {self.form} in {self.meter[0]}/{self.meter[1]}")
        if self.mode not in MODES or self.tonic not in TONICS:
            raise ValueError(f"no key {self.tonic} {self.mode}")
        if not 1 <= self.bars <= MAX_BARS:
            raise ValueError(f"bars is {self.bars}, not 1 to {MAX_BARS}")
        if not 0 <= self.temperature <= 2 or not 0 < self.top_p <= 1:
            raise ValueError("temperature is 0 to 2, top_p above 0 and at most 1")

    @property
    def bar_ticks(self) -> int:
        """Length of a full bar."""
        return TICKS_PER_WHOLE * self.meter[0] // self.meter[1]

    @property
    def tunes(self) -> tuple[tuple[Section, ...], ...]:
        """The sections of each tune of the set; heard together they have exactly `bars` bars."""
        return layout(self.bars)


def layout(bars: int) -> tuple[tuple[Section, ...], ...]:
    """Tunes of two repeated sections of eight bars as long as they fit; the last tune takes what is left over.

    >>> layout(32)
    ((Section(bars=8, times=2), Section(bars=8, times=2)),)
    """
    whole, rest = divmod(bars, 32)
    pair = (Section(8, 2), Section(8, 2))
    if whole and rest < 4:
        last = pair if rest == 0 else (Section(8, 2), Section(8, 1), Section(8 + rest, 1))
        return (pair,) * (whole - 1) + (last,)
    if whole and rest <= 16:
        return (pair,) * (whole - 1) + ((*pair, *((Section(8, 2),) if rest == 16 else _once(rest))),)
    return (pair,) * whole + (_short(rest),)


def _short(bars: int) -> tuple[Section, ...]:
    """A tune of less than 32 bars."""
    if bars >= 20:
        return (Section(8, 2), *_once(bars - 16))
    return _once(bars)


def _once(bars: int) -> tuple[Section, ...]:
    """Sections that are not repeated, none shorter than four bars unless all is."""
    if bars < 12:
        return (Section(bars, 1),)
    return (Section(8, 1), *_once(bars - 8))
