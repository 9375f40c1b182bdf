"""Arrangement of a melody with a rule-based accompaniment: strummed or broken chords and a bass line per meter."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from backend.tasks.music.choices import BACKINGS
from backend.tasks.music.harmony import chord_pitches, harmonise
from backend.tasks.music.instrument_range import instruments_for, octave_shift
from backend.tasks.music.score import Chord, Melody, Note, Part, Score, beat_ticks_of

_MIN_CHORD_PITCH, _MAX_CHORD_PITCH = 50, 69
_MIN_BASS_PITCH = 31  # the bass uses the octave from here
_BROKEN_ORDER = (0, 1, 2, 1)
_BAR_VELOCITY, _BEAT_VELOCITY, _LIGHT_VELOCITY = 96, 84, 76
_BROKEN_VELOCITY, _STRUM_VELOCITY, _LIGHT_STRUM_VELOCITY = 80, 66, 58
_BASS_VELOCITY, _LIGHT_BASS_VELOCITY = 84, 74


@dataclass(frozen=True)
class _Pattern:
    """An accompaniment pattern: bass notes and strums as (start, duration) in ticks from the start of the pattern.

    It is `ticks` long and repeats through the bar. `broken` plays the notes of the chord one after another.
    """

    ticks: int
    bass: tuple[tuple[int, int], ...]
    strums: tuple[tuple[int, int], ...]
    broken: bool = False


class OutOfRange(ValueError):
    """The melody is outside the instrument's range in every octave. `alternatives` are instruments that can play it."""

    def __init__(self, instrument: str, alternatives: list[str]) -> None:
        super().__init__(f"the melody is outside the range of {instrument} in every octave")
        self.alternatives = alternatives


def arrange(melody: Melody, instrument: str, backing: str, tempo_bpm: float, title: str) -> Score:
    """Return a score: the melody, transposed by octaves into the instrument's range, with its accompaniment.

    Raises OutOfRange, and KeyError or ValueError for names that are not in `choices`.
    """
    if backing not in BACKINGS:
        raise ValueError(f"unknown backing: {backing}")
    shift = _octave_shift(melody, instrument)
    notes = tuple(
        replace(note, pitch=note.pitch + shift, velocity=_velocity(melody, note.start)) for note in melody.notes
    )
    parts = [Part("melody", instrument, notes)]
    chords = harmonise(melody) if backing != "none" else ()
    pattern = _accompaniment_pattern(melody)
    if backing in ("chords", "full"):
        parts.append(Part("chords", _chord_instrument(melody, instrument), _chord_part(melody, chords, pattern)))
    if backing in ("bass", "full"):
        parts.append(Part("bass", "bass", _bass_line(melody, chords, pattern)))
    return Score(title, melody, tuple(parts), tempo_bpm, chords)


def _octave_shift(melody: Melody, instrument: str) -> int:
    pitches = [note.pitch for note in melody.notes]
    shift = octave_shift(pitches, instrument)
    if shift is None:
        raise OutOfRange(instrument, instruments_for(pitches))
    return shift


def _velocity(melody: Melody, start: int) -> int:
    """Return the velocity for the metrical accent: the downbeat loudest, then beats, then notes between beats."""
    bar = bisect_right(melody.bar_starts, start) - 1
    if bar < 0:
        return _LIGHT_VELOCITY
    offset = start - melody.bar_starts[bar]
    if offset == 0:
        return _BAR_VELOCITY
    return _BEAT_VELOCITY if offset % beat_ticks_of(melody.meter) == 0 else _LIGHT_VELOCITY


def _accompaniment_pattern(melody: Melody) -> _Pattern:
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
    """Return the instrument of the chords: a guitar, or piano with a guitar melody; a harp for airs."""
    if melody.form == "air":
        return "nylon-guitar" if instrument in ("harp", "piano") else "harp"
    return "piano" if instrument in ("steel-guitar", "nylon-guitar", "banjo") else "steel-guitar"


@dataclass(frozen=True)
class _PatternSpan:
    """One repetition of the pattern, clipped at the barline. `is_final`: a held chord at the end of the tune."""

    start: int
    end: int
    chord: Chord
    is_final: bool

    def clip(self, beats: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
        """Return (start, duration) of the pattern's notes in ticks of the piece, clipped to the span."""
        if self.is_final:
            return [(self.start, self.end - self.start)]
        clipped = [(self.start + offset, min(ticks, self.end - self.start - offset)) for offset, ticks in beats]
        return [(start, ticks) for start, ticks in clipped if ticks > 0]


def _pattern_spans(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> list[_PatternSpan]:
    chord_starts = [chord.start for chord in chords]
    last_note = melody.notes[-1].start if melody.notes else 0
    spans = []
    for bar_start, bar_end in melody.measures:
        if not melody.bar_starts or bar_start < melody.bar_starts[0]:
            continue
        for start in range(bar_start, bar_end, pattern.ticks):
            end = min(start + pattern.ticks, bar_end)
            chord = chords[bisect_right(chord_starts, start) - 1]
            spans.append(_PatternSpan(start, end, chord, end == melody.end and last_note <= start))
    return spans


def _chord_part(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> tuple[Note, ...]:
    notes: list[Note] = []
    voicing: tuple[int, ...] = ()
    for span in _pattern_spans(melody, chords, pattern):
        voicing = _voicing(span.chord, voicing)
        for number, (start, ticks) in enumerate(span.clip(pattern.strums)):
            if pattern.broken and not span.is_final:
                notes.append(Note(start, ticks, voicing[_BROKEN_ORDER[number % 4]], _BROKEN_VELOCITY))
                continue
            light = number == 0 and len(pattern.strums) > 1
            velocity = _LIGHT_STRUM_VELOCITY if light else _STRUM_VELOCITY
            notes += [Note(start, ticks, pitch, velocity) for pitch in voicing]
    return tuple(notes)


def _voicing(chord: Chord, before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the voicing with the smallest voice movement from the previous one."""
    classes = chord_pitches(chord)
    positions = []
    for lowest in range(_MIN_CHORD_PITCH, _MAX_CHORD_PITCH - 11):
        if lowest % 12 in classes:
            rest = sorted((lowest + (pitch - lowest) % 12) for pitch in classes)
            positions.append(tuple(rest))
    if not before:
        return positions[0]
    return min(positions, key=lambda position: sum(abs(a - b) for a, b in zip(position, before, strict=True)))


def _bass_line(melody: Melody, chords: tuple[Chord, ...], pattern: _Pattern) -> tuple[Note, ...]:
    """Return the bass: the root at the start of each chord and bar and at the end, else the fifth."""
    notes: list[Note] = []
    bars = set(melody.bar_starts)
    for span in _pattern_spans(melody, chords, pattern):
        root, _, fifth = chord_pitches(span.chord)
        plays_root = span.is_final or span.start in bars or span.start == span.chord.start
        velocity = _BASS_VELOCITY if plays_root else _LIGHT_BASS_VELOCITY
        pitch = _bass_pitch(root if plays_root else fifth)
        notes += [Note(start, ticks, pitch, velocity) for start, ticks in span.clip(pattern.bass)]
    return tuple(notes)


def _bass_pitch(pitch: int) -> int:
    return _MIN_BASS_PITCH + (pitch - _MIN_BASS_PITCH) % 12
