"""The melody that the model composes, and the score that every exporter reads.

Time is in ticks, 96 per whole note; pitches are MIDI note numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TICKS_PER_WHOLE = 96


def beat_ticks_of(meter: tuple[int, int]) -> int:
    """Return the ticks of a beat: a dotted quarter in 6/8, 9/8 and 12/8, else a quarter."""
    top, bottom = meter
    compound = bottom == 8 and top % 3 == 0 and top > 3
    return TICKS_PER_WHOLE * (3 if compound else 2) // 8


@dataclass(frozen=True)
class Note:
    """A note as played. `start` counts from the start of the piece, its pickup included."""

    start: int
    ticks: int
    pitch: int
    velocity: int = 80


@dataclass(frozen=True)
class Chord:
    """A chord. `root` is a pitch class (C is 0), `quality` is "maj", "min" or "dim"."""

    start: int
    ticks: int
    root: int
    quality: str


@dataclass(frozen=True)
class Part:
    """A part. `name` is "melody", "chords" or "bass"; `instrument` is a name in the sound bank."""

    name: str
    instrument: str
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Melody:
    """A composed tune with repeats expanded, in its key.

    `bar_starts` are the start ticks of all full bars; a pickup comes before the first one. `sections` are the indexes
    of the first bar of each section, repeats included.
    """

    form: str
    meter: tuple[int, int]
    tonic: str  # "D", "F#", "Bb"
    mode: str  # "major", "minor", "dorian", "mixolydian"
    pickup_ticks: int
    bar_starts: tuple[int, ...]
    sections: tuple[int, ...]
    notes: tuple[Note, ...]
    end: int

    @property
    def bar_ticks(self) -> int:
        """The duration of a full bar."""
        return TICKS_PER_WHOLE * self.meter[0] // self.meter[1]

    @property
    def bars(self) -> int:
        """The number of full bars, repeats included."""
        return len(self.bar_starts)

    @property
    def measures(self) -> tuple[tuple[int, int], ...]:
        """The (start, end) of every measure, without gaps: full bars, pickups, and a short last bar."""
        measures = [(0, self.bar_starts[0] if self.bar_starts else self.end)]
        for start, following in zip(self.bar_starts, (*self.bar_starts, self.end)[1:], strict=True):
            middle = min(start + self.bar_ticks, following)
            measures += [(start, middle), (middle, following)]
        return tuple(measure for measure in measures if measure[0] < measure[1])


@dataclass(frozen=True)
class Score:
    """A melody with its accompaniment and tempo: the common source of audio, MIDI, ABC and sheet.

    `tempo_bpm` is in beats per minute; a beat is `beat_ticks` long. `chords` are the chord symbols, `credits` the tags.
    """

    title: str
    melody: Melody
    parts: tuple[Part, ...]
    tempo_bpm: float
    chords: tuple[Chord, ...] = ()
    credits: dict[str, str] = field(default_factory=dict)

    @property
    def beat_ticks(self) -> int:
        """The ticks of a beat."""
        return beat_ticks_of(self.melody.meter)

    @property
    def seconds_per_tick(self) -> float:
        """The duration of a tick."""
        return 60.0 / (self.tempo_bpm * self.beat_ticks)

    @property
    def seconds(self) -> float:
        """The duration from the first tick to the end of the last bar."""
        return self.melody.end * self.seconds_per_tick
