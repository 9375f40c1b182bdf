"""The plan of a tune: the inputs of the melody model, and the layout of its bars in sections.

A long plan is a set: several tunes in a row, as players join them.
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

# The meters of each form that occur in the training data, the usual one first.
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
    """A phrase to continue: its notes with ticks from the start of the phrase and MIDI pitches in the plan's key.

    `pickup_ticks` is the part before the first barline. The phrase may end within a bar.
    """

    pickup_ticks: int
    notes: tuple[Note, ...]
    end: int


@dataclass(frozen=True)
class Section:
    """A section: its bars as written, and the number of times that it is played."""

    bars: int
    times: int


@dataclass(frozen=True)
class Plan:
    """A tune, or a set of tunes, to compose. Variations share a plan and differ in their seeds.

    `bars` counts full bars with repeats, 1 to 256. `pickup` allows notes before the first bar. Raises ValueError for
    invalid values, which callers reject before with a remedy.
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
            raise ValueError(f"the form {self.form} has no tunes in {self.meter[0]}/{self.meter[1]}")
        if self.mode not in MODES or self.tonic not in TONICS:
            raise ValueError(f"unknown key {self.tonic} {self.mode}")
        if not 1 <= self.bars <= MAX_BARS:
            raise ValueError(f"bars is {self.bars}; it must be 1 to {MAX_BARS}")
        if not 0 <= self.temperature <= 2 or not 0 < self.top_p <= 1:
            raise ValueError("temperature must be 0 to 2, top_p above 0 and at most 1")

    @property
    def bar_ticks(self) -> int:
        """The duration of a full bar."""
        return TICKS_PER_WHOLE * self.meter[0] // self.meter[1]

    @property
    def tunes(self) -> tuple[tuple[Section, ...], ...]:
        """The sections of each tune of the set. With repeats they have exactly `bars` bars."""
        return layout(self.bars)


def layout(bars: int) -> tuple[tuple[Section, ...], ...]:
    """Return tunes of two repeated eight-bar sections as long as they fit; the last tune takes the remaining bars.

    >>> layout(32)
    ((Section(bars=8, times=2), Section(bars=8, times=2)),)
    """
    full_tunes, rest = divmod(bars, 32)
    pair = (Section(8, 2), Section(8, 2))
    if full_tunes and rest < 4:
        last = pair if rest == 0 else (Section(8, 2), Section(8, 1), Section(8 + rest, 1))
        return (pair,) * (full_tunes - 1) + (last,)
    if full_tunes and rest <= 16:
        return (pair,) * (full_tunes - 1) + ((*pair, *((Section(8, 2),) if rest == 16 else _unrepeated(rest))),)
    return (pair,) * full_tunes + (_short_tune(rest),)


def _short_tune(bars: int) -> tuple[Section, ...]:
    """Return the sections of a tune of less than 32 bars."""
    if bars >= 20:
        return (Section(8, 2), *_unrepeated(bars - 16))
    return _unrepeated(bars)


def _unrepeated(bars: int) -> tuple[Section, ...]:
    """Return sections that are not repeated, each of at least four bars if `bars` is."""
    if bars < 12:
        return (Section(bars, 1),)
    return (Section(8, 1), *_unrepeated(bars - 8))
