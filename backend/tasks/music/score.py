"""What is between the model and the files: the melody as written, and the score that every renderer reads.

Time is counted in ticks, 96 to a whole note; pitches are MIDI note numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TICKS_PER_WHOLE = 96


def beat_ticks_of(meter: tuple[int, int]) -> int:
    """Ticks of the beat that a tempo counts: a dotted quarter in 6/8, 9/8 and 12/8, else a quarter."""
    top, bottom = meter
    compound = bottom == 8 and top % 3 == 0 and top > 3
    return TICKS_PER_WHOLE * (3 if compound else 2) // 8


@dataclass(frozen=True)
class Note:
    """A sounding note as heard; `start` counts from the first downbeat or pickup of the piece."""

    start: int
    ticks: int
    pitch: int
    velocity: int = 80


@dataclass(frozen=True)
class Chord:
    """A harmony from `start` on: `root` is a pitch class (C is 0), `quality` is "maj", "min" or "dim"."""

    start: int
    ticks: int
    root: int
    quality: str


@dataclass(frozen=True)
class Part:
    """One voice: `name` is "melody", "chords" or "bass"; `instrument` is a name of the sound bank."""

    name: str
    instrument: str
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Melody:
    """A tune as the model made it, repeats played out, in its key.

    `bar_starts` has the tick at which each full bar begins; a pickup lies before the first of them. `sections` has
    the index of the first bar of each section as heard.
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
        """Length of a full bar."""
        return TICKS_PER_WHOLE * self.meter[0] // self.meter[1]

    @property
    def bars(self) -> int:
        """Full bars as heard."""
        return len(self.bar_starts)

    @property
    def measures(self) -> tuple[tuple[int, int], ...]:
        """Start and end of all that stands between two bar lines, without gaps: bars, pickups, a last bar cut short."""
        measures = [(0, self.bar_starts[0] if self.bar_starts else self.end)]
        for start, following in zip(self.bar_starts, (*self.bar_starts, self.end)[1:], strict=True):
            middle = min(start + self.bar_ticks, following)
            measures += [(start, middle), (middle, following)]
        return tuple(measure for measure in measures if measure[0] < measure[1])


@dataclass(frozen=True)
class Score:
    """A melody with its backing and tempo: the one source of WAV, FLAC, MIDI, ABC and sheet.

    `tempo_bpm` counts beats of the metre (dotted quarters in 6/8, 9/8 and 12/8, else quarters).
    """

    title: str
    melody: Melody
    parts: tuple[Part, ...]
    tempo_bpm: float
    chords: tuple[Chord, ...] = ()
    credits: dict[str, str] = field(default_factory=dict)

    @property
    def beat_ticks(self) -> int:
        """Ticks of the beat that the tempo counts."""
        return beat_ticks_of(self.melody.meter)

    @property
    def seconds_per_tick(self) -> float:
        """Seconds that a tick lasts."""
        return 60.0 / (self.tempo_bpm * self.beat_ticks)

    @property
    def seconds(self) -> float:
        """Seconds from the first tick to the end of the last bar."""
        return self.melody.end * self.seconds_per_tick
