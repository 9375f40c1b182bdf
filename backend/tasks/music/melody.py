"""Conversion of a tune's grid to a melody: expand repeats, join ties, transpose to the key and octave."""

from __future__ import annotations

from backend.tasks.music import tokens
from backend.tasks.music.grid import TuneGrid
from backend.tasks.music.plan import TONICS, Plan
from backend.tasks.music.score import Melody, Note

MIDDLE = 72.5  # approximate mean pitch of fiddle tunes
LOWEST, HIGHEST = 55, 93  # a violin's range in first and third position


def build_melody(plan: Plan, rows: list[TuneGrid]) -> Melody:
    """Return the tunes of `rows` joined to one melody. Raises ValueError for an incomplete tune."""
    starts: list[int] = []
    sections: list[int] = []
    notes_above_tonic: list[tuple[int, int, int]] = []  # start, ticks, semitones above the tonic
    pickup = rows[0].pickups[0]
    position = pickup  # the tick at which the next bar starts
    for row, layout in zip(rows, plan.tunes, strict=True):
        for number, section in enumerate(layout):
            for time in range(section.times):
                sections.append(len(starts))
                ends_tune = number == len(layout) - 1 and time == section.times - 1
                _play_section(row, number, position, notes_above_tonic, to_full_bar=ends_tune)
                starts += range(position, position + section.bars * row.bar_ticks, row.bar_ticks)
                position += section.bars * row.bar_ticks
    tonic = _choose_tonic(plan, [(pitch, ticks) for _, ticks, pitch in notes_above_tonic])
    notes = tuple(Note(start, ticks, tonic + pitch) for start, ticks, pitch in notes_above_tonic)
    return Melody(plan.form, plan.meter, plan.tonic, plan.mode, pickup, tuple(starts), tuple(sections), notes, position)


def _play_section(
    row: TuneGrid, section: int, position: int, out: list[tuple[int, int, int]], to_full_bar: bool
) -> None:
    """Adds a section whose first bar begins at `at`; its last note is held to the barline where no pickup follows."""
    bars = row.heading.sections[section]
    events = [event for event in row.events if event.section == section]
    for number, event in enumerate(events):
        start = position + (bars - event.bars_left) * row.bar_ticks + event.tick
        ticks = event.ticks
        if to_full_bar and number == len(events) - 1:
            ticks += row.pickups[section]
        pitch = tokens.token_pitch(event.token)
        if pitch is not None:
            out.append((start, ticks, pitch))
        elif event.token == tokens.TIE:
            before = out.pop()
            out.append((before[0], before[1] + ticks, before[2]))


def _choose_tonic(plan: Plan, pitches: list[tuple[int, int]]) -> int:
    """Return the MIDI note number of the tonic: in the opening's octave, or in the octave that fits the tune best."""
    pitch_class = TONICS[plan.tonic]
    if plan.opening is not None:
        return opening_tonic(pitch_class, plan.opening.notes)
    if not pitches:
        return 60 + pitch_class
    low, high = min(pitch for pitch, _ in pitches), max(pitch for pitch, _ in pitches)
    mean = sum(pitch * ticks for pitch, ticks in pitches) / sum(ticks for _, ticks in pitches)

    def cost(tonic: int) -> float:
        outside = max(0, LOWEST - tonic - low) + max(0, tonic + high - HIGHEST)
        return abs(tonic + mean - MIDDLE) + 12 * outside

    return min((pitch_class + 12 * octave for octave in range(3, 8)), key=cost)


def opening_tonic(pitch_class: int, notes: tuple[Note, ...]) -> int:
    """Return the tonic that is 0 to 11 semitones below the phrase's mean pitch, as in the training tunes."""
    total = sum(note.ticks for note in notes)
    return (sum(note.pitch * note.ticks for note in notes) // total - pitch_class) // 12 * 12 + pitch_class
