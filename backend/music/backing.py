"""A melody with its backing: chords by rule, strummed or broken, and a bass line, in the patterns of each metre."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend.music.choices import BACKINGS, INSTRUMENTS
from backend.music.harmony import chord_pitches, harmonise
from backend.music.score import Chord, Melody, Note, Part, Score

_CHORD_LOWEST, _CHORD_HIGHEST = 50, 69
_BASS_LOWEST, _BASS_HIGHEST = 31, 47
_BEAT_VELOCITY, _OFF_VELOCITY, _LIGHT_VELOCITY = 96, 84, 76


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

    def __init__(self, instrument: str, lowest: int, highest: int, possible: tuple[str, ...]) -> None:
        super().__init__(f"{instrument} does not reach from key {lowest} to key {highest}")
        self.possible = possible


def arrange(melody: Melody, instrument: str, backing: str, tempo_bpm: float, title: str) -> Score:
    """The score: the melody, moved by octaves to where the instrument plays, and its backing.

    Raises OutOfRange, and KeyError or ValueError for names that are not in `choices`.
    """
    if backing not in BACKINGS:
        raise ValueError(f"no such backing: {backing}")
    shift = octave_shift(melody, instrument)
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


def octave_shift(melody: Melody, instrument: str) -> int:
    """Semitones, a multiple of 12 and as few as possible, that bring the melody into the instrument's range.

    Raises OutOfRange where no octave does, and KeyError for an unknown instrument.
    """
    pitches = [note.pitch for note in melody.notes]
    if not pitches:
        return 0
    shift = _shift(min(pitches), max(pitches), instrument)
    if shift is None:
        possible = tuple(name for name in INSTRUMENTS if _shift(min(pitches), max(pitches), name) is not None)
        raise OutOfRange(instrument, min(pitches), max(pitches), possible)
    return shift


def _shift(lowest: int, highest: int, instrument: str) -> int | None:
    reach = INSTRUMENTS[instrument]
    fits = [
        12 * octaves
        for octaves in range(-8, 9)
        if reach.lowest <= lowest + 12 * octaves and highest + 12 * octaves <= reach.highest
    ]
    return min(fits, key=abs) if fits else None


def _velocity(melody: Melody, start: int) -> int:
    """Accents of the metre: the beats a little louder, what lies between them lighter."""
    offset = next((start - bar for bar in reversed(melody.bar_starts) if bar <= start), -1)
    if offset == 0:
        return _BEAT_VELOCITY
    beat = 36 if melody.meter[1] == 8 else 24
    return _OFF_VELOCITY if offset > 0 and offset % beat == 0 else _LIGHT_VELOCITY


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


def _groups(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> list[tuple[int, int, Chord]]:
    """Start, end and chord of each repetition of the pattern, cut where a chord or bar ends."""
    found = []
    bars = [measure for measure in melody.measures if melody.bar_starts and measure[0] >= melody.bar_starts[0]]
    for bar_start, bar_end in bars:
        for start in range(bar_start, bar_end, pattern.ticks):
            chord = next(chord for chord in reversed(chords) if chord.start <= start)
            found.append((start, min(start + pattern.ticks, bar_end), chord))
    return found


def _strummed(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> tuple[Note, ...]:
    notes: list[Note] = []
    voicing: tuple[int, ...] = ()
    for start, end, chord in _groups(melody, chords, pattern):
        voicing = _voicing(chord, voicing)
        for number, (offset, ticks) in enumerate(pattern.strums):
            at, length = start + offset, min(ticks, end - start - offset)
            if length <= 0:
                continue
            if pattern.broken:
                order = (0, 1, 2, 1)
                notes.append(Note(at, length, voicing[order[number % 4]], 62))
            else:
                notes += [
                    Note(at, length, pitch, 58 if number == 0 and len(pattern.strums) > 1 else 66) for pitch in voicing
                ]
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
    """Root where a chord begins or a bar does, its fifth between."""
    notes: list[Note] = []
    bars = set(melody.bar_starts)
    for start, end, chord in _groups(melody, chords, pattern):
        root, _, fifth = chord_pitches(chord)
        low = start in bars or start == chord.start
        for offset, ticks in pattern.bass:
            length = min(ticks, end - start - offset)
            if length > 0:
                notes.append(Note(start + offset, length, _bass_pitch(root if low else fifth), 84 if low else 74))
    return tuple(notes)


def _bass_pitch(pitch: int) -> int:
    return _BASS_LOWEST + (pitch - _BASS_LOWEST) % 12
