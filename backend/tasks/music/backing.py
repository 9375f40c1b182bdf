"""A melody with its backing: chords by rule, strummed or broken, and a bass line, in the patterns of each metre."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from backend.tasks.music.choices import BACKINGS
from backend.tasks.music.harmony import chord_pitches, harmonise
from backend.tasks.music.instrument_range import reaching, shift_of
from backend.tasks.music.score import Chord, Melody, Note, Part, Score, beat_ticks_of

_CHORD_LOWEST, _CHORD_HIGHEST = 50, 69
_BASS_LOWEST = 31  # and the eleven keys above it
_BROKEN_ORDER = (0, 1, 2, 1)
_BAR_VELOCITY, _BEAT_VELOCITY, _LIGHT_VELOCITY = 96, 84, 76
_BROKEN_VELOCITY, _STRUM_VELOCITY, _LIGHT_STRUM_VELOCITY = 80, 66, 58
_BASS_VELOCITY, _LIGHT_BASS_VELOCITY = 84, 74


@dataclass(frozen=True)
class _Pattern:
    """What accompanies one beat group, in ticks from its start: bass notes and strums as (start, length).

    A group is `ticks` long and repeats through the bar. `broken` plays the chord's notes one after another.
    """

    ticks: int
    bass: tuple[tuple[int, int], ...]
    strums: tuple[tuple[int, int], ...]
    broken: bool = False


class OutOfRange(ValueError):
    """The instrument reaches the melody in no octave; `possible` names those that do."""

    def __init__(self, instrument: str, possible: list[str]) -> None:
        super().__init__(f"{instrument} does not reach the whole melody in any octave")
        self.possible = possible


def arrange(melody: Melody, instrument: str, backing: str, tempo_bpm: float, title: str) -> Score:
    """The score: the melody, moved by octaves to where the instrument plays, and its backing.

    Raises OutOfRange, and KeyError or ValueError for names that are not in `choices`.
    """
    if backing not in BACKINGS:
        raise ValueError(f"no such backing: {backing}")
    shift = _shift(melody, instrument)
    notes = tuple(
        replace(note, pitch=note.pitch + shift, velocity=_velocity(melody, note.start)) for note in melody.notes
    )
    parts = [Part("melody", instrument, notes)]
    chords = harmonise(melody) if backing != "none" else ()
    pattern = _pattern(melody)
    if backing in ("chords", "full"):
        parts.append(Part("chords", _chord_instrument(melody, instrument), _strummed(melody, chords, pattern)))
    if backing in ("bass", "full"):
        parts.append(Part("bass", "bass", _bass_line(melody, chords, pattern)))
    return Score(title, melody, tuple(parts), tempo_bpm, chords)


def _shift(melody: Melody, instrument: str) -> int:
    pitches = [note.pitch for note in melody.notes]
    shift = shift_of(pitches, instrument)
    if shift is None:
        raise OutOfRange(instrument, reaching(pitches))
    return shift


def _velocity(melody: Melody, start: int) -> int:
    """Accents of the metre: the beats a little louder, what lies between them lighter."""
    bar = bisect_right(melody.bar_starts, start) - 1
    if bar < 0:
        return _LIGHT_VELOCITY
    offset = start - melody.bar_starts[bar]
    if offset == 0:
        return _BAR_VELOCITY
    return _BEAT_VELOCITY if offset % beat_ticks_of(melody.meter) == 0 else _LIGHT_VELOCITY


def _pattern(melody: Melody) -> _Pattern:
    meter, form = melody.meter, melody.form
    if form == "air":
        unit = 12
        ticks = melody.bar_ticks if meter[0] == 3 else melody.bar_ticks // 2 if meter != (2, 4) else 48
        starts = tuple((tick, unit) for tick in range(unit, ticks, unit))
        return _Pattern(ticks, ((0, ticks),), starts, broken=True)
    if meter[1] == 8 and meter[0] % 3 == 0:
        return _Pattern(36, ((0, 24),), ((12, 12), (24, 12)))
    if meter == (2, 4):
        return _Pattern(24, ((0, 12),), ((12, 12),))
    if meter[0] == 3:
        return _Pattern(24 * 3, ((0, 24),), ((24, 24), (48, 24)))
    return _Pattern(48, ((0, 24),), ((24, 24),))


def _chord_instrument(melody: Melody, instrument: str) -> str:
    """Guitar below everything but a guitar; a harp's broken chords below airs."""
    if melody.form == "air":
        return "nylon-guitar" if instrument in ("harp", "piano") else "harp"
    return "piano" if instrument in ("steel-guitar", "nylon-guitar", "banjo") else "steel-guitar"


@dataclass(frozen=True)
class _Place:
    """One repetition of the pattern, cut where the bar ends. At the very end of a tune it is one held chord."""

    start: int
    end: int
    chord: Chord
    held: bool

    def cut(self, beats: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
        """Starts and lengths of what the pattern has, in ticks of the piece."""
        if self.held:
            return [(self.start, self.end - self.start)]
        found = [(self.start + offset, min(ticks, self.end - self.start - offset)) for offset, ticks in beats]
        return [(start, ticks) for start, ticks in found if ticks > 0]


def _places(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> list[_Place]:
    chord_starts = [chord.start for chord in chords]
    last_note = melody.notes[-1].start if melody.notes else 0
    found = []
    for bar_start, bar_end in melody.measures:
        if not melody.bar_starts or bar_start < melody.bar_starts[0]:
            continue
        for start in range(bar_start, bar_end, pattern.ticks):
            end = min(start + pattern.ticks, bar_end)
            chord = chords[bisect_right(chord_starts, start) - 1]
            found.append(_Place(start, end, chord, end == melody.end and last_note <= start))
    return found


def _strummed(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> tuple[Note, ...]:
    notes: list[Note] = []
    voicing: tuple[int, ...] = ()
    for place in _places(melody, chords, pattern):
        voicing = _voicing(place.chord, voicing)
        for number, (start, ticks) in enumerate(place.cut(pattern.strums)):
            if pattern.broken and not place.held:
                notes.append(Note(start, ticks, voicing[_BROKEN_ORDER[number % 4]], _BROKEN_VELOCITY))
                continue
            light = number == 0 and len(pattern.strums) > 1
            velocity = _LIGHT_STRUM_VELOCITY if light else _STRUM_VELOCITY
            notes += [Note(start, ticks, pitch, velocity) for pitch in voicing]
    return tuple(notes)


def _voicing(chord: Chord, before: tuple[int, ...]) -> tuple[int, ...]:
    """The three notes in the position that moves least from the voicing before."""
    classes = chord_pitches(chord)
    positions = []
    for lowest in range(_CHORD_LOWEST, _CHORD_HIGHEST - 11):
        if lowest % 12 in classes:
            rest = sorted((lowest + (pitch - lowest) % 12) for pitch in classes)
            positions.append(tuple(rest))
    if not before:
        return positions[0]
    return min(positions, key=lambda position: sum(abs(a - b) for a, b in zip(position, before, strict=True)))


def _bass_line(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> tuple[Note, ...]:
    """Root where a chord begins or a bar does, and at the end; its fifth between."""
    notes: list[Note] = []
    bars = set(melody.bar_starts)
    for place in _places(melody, chords, pattern):
        root, _, fifth = chord_pitches(place.chord)
        low = place.held or place.start in bars or place.start == place.chord.start
        velocity = _BASS_VELOCITY if low else _LIGHT_BASS_VELOCITY
        pitch = _bass_pitch(root if low else fifth)
        notes += [Note(start, ticks, pitch, velocity) for start, ticks in place.cut(pattern.bass)]
    return tuple(notes)


def _bass_pitch(pitch: int) -> int:
    return _BASS_LOWEST + (pitch - _BASS_LOWEST) % 12
