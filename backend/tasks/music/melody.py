"""Plays out what was written: sections in their repeats, ties joined, in the key and octave to be heard."""

from __future__ import annotations

from backend.tasks.music import tokens
from backend.tasks.music.grid import Row
from backend.tasks.music.plan import TONICS, Plan
from backend.tasks.music.score import Melody, Note

MIDDLE = 72.5  # the mean pitch of fiddle tunes lies about here
LOWEST, HIGHEST = 55, 93  # a violin's range in first and third position


def melody(plan: Plan, rows: list[Row]) -> Melody:
    """The tunes of `rows` one after another. Raises ValueError for a row that is not complete."""
    starts: list[int] = []
    sections: list[int] = []
    sounding: list[tuple[int, int, int]] = []  # start, ticks, semitones above the tonic
    pickup = rows[0].pickups[0]
    at = pickup  # the tick at which the next bar begins
    for row, layout in zip(rows, plan.tunes, strict=True):
        for number, section in enumerate(layout):
            for time in range(section.times):
                sections.append(len(starts))
                ends_tune = number == len(layout) - 1 and time == section.times - 1
                _play(row, number, at, sounding, to_full_bar=ends_tune)
                starts += range(at, at + section.bars * row.bar_ticks, row.bar_ticks)
                at += section.bars * row.bar_ticks
    tonic = _tonic(plan, [(pitch, ticks) for _, ticks, pitch in sounding])
    notes = tuple(Note(start, ticks, tonic + pitch) for start, ticks, pitch in sounding)
    return Melody(plan.form, plan.meter, plan.tonic, plan.mode, pickup, tuple(starts), tuple(sections), notes, at)


def _play(row: Row, section: int, at: int, sounding: list[tuple[int, int, int]], to_full_bar: bool) -> None:
    """Adds a section whose first bar begins at `at`; its last note is held to the barline where no pickup follows."""
    bars = row.heading.sections[section]
    events = [event for event in row.events if event.section == section]
    for number, event in enumerate(events):
        start = at + (bars - event.left) * row.bar_ticks + event.tick
        ticks = event.ticks
        if to_full_bar and number == len(events) - 1:
            ticks += row.pickups[section]
        pitch = tokens.token_pitch(event.token)
        if pitch is not None:
            sounding.append((start, ticks, pitch))
        elif event.token == tokens.TIE:
            before = sounding.pop()
            sounding.append((before[0], before[1] + ticks, before[2]))


def _tonic(plan: Plan, heard: list[tuple[int, int]]) -> int:
    """MIDI number of the tonic, in the octave of the opening or else where the tune lies best."""
    pitch_class = TONICS[plan.tonic]
    if plan.opening is not None:
        return opening_tonic(pitch_class, plan.opening.notes)
    if not heard:
        return 60 + pitch_class
    low, high = min(pitch for pitch, _ in heard), max(pitch for pitch, _ in heard)
    mean = sum(pitch * ticks for pitch, ticks in heard) / sum(ticks for _, ticks in heard)

    def cost(tonic: int) -> float:
        outside = max(0, LOWEST - tonic - low) + max(0, tonic + high - HIGHEST)
        return abs(tonic + mean - MIDDLE) + 12 * outside

    return min((pitch_class + 12 * octave for octave in range(3, 8)), key=cost)


def opening_tonic(pitch_class: int, notes: tuple[Note, ...]) -> int:
    """The tonic below most of a phrase: its mean lies 0 to 11 semitones above, as in the training tunes."""
    total = sum(note.ticks for note in notes)
    return (sum(note.pitch * note.ticks for note in notes) // total - pitch_class) // 12 * 12 + pitch_class
