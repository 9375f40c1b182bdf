"""Independent readers of the written files, which return notes as (start, length, pitch) in ticks."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import mido
import music21

from backend.tasks.music.score import TICKS_PER_WHOLE, Part, Score

Heard = tuple[float, float, int]
_QUARTER_TICKS = TICKS_PER_WHOLE // 4


def written(part: Part) -> list[Heard]:
    """Return the notes of a part of the score."""
    return sorted((note.start, note.ticks, note.pitch) for note in part.notes)


def parts_with_notes(score: Score) -> list[list[Heard]]:
    """Return the notes of all parts with notes."""
    return [written(part) for part in score.parts if part.notes]


def music21_notes(text: str | bytes, format_name: str) -> list[list[Heard]]:
    """Return the notes of each part as music21 reads an ABC or MIDI file: ties joined, without chord symbols."""
    options: dict[str, Any] = {"quantizePost": False} if format_name == "midi" else {}
    score = music21.converter.parseData(text, format=format_name, **options)
    parts = list(score.parts) if isinstance(score, music21.stream.Score) else [score]
    return [heard for part in parts if (heard := _part_notes(part))]


def _part_notes(part: Any) -> list[Heard]:
    found = []
    for element in part.stripTies().flatten().notes:
        if isinstance(element, music21.harmony.ChordSymbol):
            continue
        for note in element.notes if element.isChord else [element]:
            found.append((_ticks(element.offset), _ticks(element.quarterLength), int(note.pitch.midi)))
    return sorted(found)


def _ticks(quarters: Any) -> float:
    return float(Fraction(quarters).limit_denominator(960) * _QUARTER_TICKS)


def midi_notes(data: bytes) -> list[list[Heard]]:
    """Return the notes of each track of a MIDI file with notes."""
    file = mido.MidiFile(file=io.BytesIO(data))
    tracks = []
    for track in file.tracks:
        now = 0
        began: dict[tuple[int, int], int] = {}
        notes = []
        for message in track:
            now += message.time
            if message.type == "note_on" and message.velocity:
                began[message.channel, message.note] = now
            elif message.type in ("note_on", "note_off"):
                start = began.pop((message.channel, message.note))
                scale = _QUARTER_TICKS / file.ticks_per_beat
                notes.append((start * scale, (now - start) * scale, message.note))
        assert not began, "a note never ends"
        if notes:
            tracks.append(sorted(notes))
    return tracks
