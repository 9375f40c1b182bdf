"""An opening phrase: parse it from ABC, and convert it to the first tokens of a tune. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from backend.tasks.music import tokens
from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.abc_music import Bar
from backend.tasks.music.abc_reader import read_phrase
from backend.tasks.music.abc_repeats import expand_repeats
from backend.tasks.music.grid import Heading, Slot, TuneGrid
from backend.tasks.music.melody import opening_tonic
from backend.tasks.music.plan import MODES, TONICS, Opening, Plan
from backend.tasks.music.score import TICKS_PER_WHOLE, Note

MAX_BARS = 64
SECTION_BARS = 8  # repeats in a longer phrase are not expanded, since a tune repeats its sections anyway


@dataclass(frozen=True)
class Phrase:
    """A parsed ABC phrase. `meter`, `tonic` and `mode` are optional. `omissions` are messages about skipped parts."""

    opening: Opening
    meter: tuple[int, int] | None
    tonic: str | None
    mode: str | None
    bars: int
    omissions: tuple[str, ...]


def read_opening(text: str, meter: tuple[int, int] | None = None, key: str | None = None) -> Phrase:
    """Parse a phrase. Its repeats are expanded if the result is not longer than a section.

    `meter` and `key` are the defaults for a phrase without them. Raises AbcError for invalid ABC, an unsupported mode,
    or a rhythm that is finer than a tick.
    """
    tune = read_phrase(text, meter, key)
    if tune.changes:
        what = "key" if "K" in tune.changes else "metre"
        raise AbcError(1, 1, f"the {what} changes within the phrase", f"use only one {what}")
    if tune.key is not None and tune.key.mode not in MODES:
        raise AbcError(1, 1, f"the mode {tune.key.mode} is not supported", f"use one of {', '.join(MODES)}")
    if tune.key is not None and tune.key.tonic not in TONICS:
        raise AbcError(1, 1, f"the key of {tune.key.tonic} is not supported", "use its enharmonic equivalent")
    meter_shown = (4, 4) if tune.meter == (2, 2) else tune.meter
    top, bottom = meter_shown or meter or (4, 4)
    bar_ticks = TICKS_PER_WHOLE * top // bottom
    pickup = tune.bars[0].ticks if len(tune.bars) > 1 and tune.bars[0].ticks < bar_ticks else Fraction(0)
    played = expand_repeats(tune.bars)
    if sum(bar.ticks for bar in played) - pickup > SECTION_BARS * bar_ticks:
        played = tune.bars
    notes, end = _join_ties(played)
    opening = Opening(int(pickup), notes, end)
    if opening.end - opening.pickup_ticks > MAX_BARS * bar_ticks:
        raise AbcError(1, 1, f"the phrase is longer than {MAX_BARS} bars", "send only the opening phrase")
    bars = -(-(opening.end - opening.pickup_ticks) // bar_ticks)
    tonic, mode = (tune.key.tonic, tune.key.mode) if tune.key else (None, None)
    return Phrase(opening, meter_shown, tonic, mode, bars, tuple(tune.omissions))


def _join_ties(bars: list[Bar]) -> tuple[tuple[Note, ...], int]:
    """Return the notes with ties joined, and the end of the phrase in ticks. Raises AbcError for too fine rhythms."""
    notes: list[Note] = []
    position, tied = Fraction(0), False
    for bar in bars:
        for note in bar.notes:
            if (position + note.ticks).denominator != 1 or note.ticks == 0:
                raise AbcError(
                    bar.line, 1, "a rhythm is finer than 1/96 of a whole note", "use longer notes or triplets"
                )
            if note.pitch is not None and tied and notes and notes[-1].pitch == note.pitch:
                notes[-1] = Note(notes[-1].start, notes[-1].ticks + int(note.ticks), note.pitch)
            elif note.pitch is not None:
                notes.append(Note(int(position), int(note.ticks), note.pitch))
            position += note.ticks
            tied = note.tied
    return tuple(notes), int(position)


def opening_tokens(plan: Plan) -> list[int]:
    """Return the tokens of the plan's opening, including pickups, without forced tokens.

    Raises ValueError if the phrase does not fit: it is too long or out of range, or the grid lacks its rhythm.
    """
    opening = plan.opening
    assert opening is not None
    sections = tuple(section.bars for section in plan.tunes[0])
    row = TuneGrid(Heading(plan.form, plan.meter, plan.mode, sections))
    pickup = opening.pickup_ticks if opening.pickup_ticks in tokens.PICKUPS else 0
    if opening.pickup_ticks >= row.bar_ticks:
        raise ValueError("the phrase has more than a bar before its first barline")
    lead = row.bar_ticks - opening.pickup_ticks if opening.pickup_ticks != pickup else 0
    tonic = opening_tonic(TONICS[plan.tonic], opening.notes)
    result: list[int] = []

    def push(token: int) -> None:
        row.push(token)
        result.append(token)

    def write(token: int, ticks: int) -> None:
        while ticks:
            while row.slot in (Slot.FORCED, Slot.PICKUP):
                if row.slot is Slot.FORCED:
                    row.push(row.forced_token)
                else:
                    push(tokens.PICKUP + tokens.PICKUPS.index(pickup))
            if row.slot is Slot.DONE:
                raise ValueError(f"the phrase is longer than the tune's {plan.bars} bars")
            push(token)
            part = _largest_duration(row, ticks)
            push(part)
            ticks -= tokens.DURATIONS[part - tokens.DURATION]
            token = token if token == tokens.REST else tokens.TIE

    write(tokens.REST, lead)
    position = 0
    for note in opening.notes:
        write(tokens.REST, note.start - position)
        if note.pitch - tonic not in tokens.PITCHES:
            raise ValueError("the phrase exceeds the model's range, three octaves around the tonic")
        write(tokens.pitch_token(note.pitch - tonic), note.ticks)
        position = note.start + note.ticks
    write(tokens.REST, opening.end - position)
    return result


def _largest_duration(row: TuneGrid, ticks: int) -> int:
    """Return the longest allowed duration up to `ticks` whose remainder can be written too. Raises ValueError."""
    allowed = row.allowed_tokens()
    for number in range(len(tokens.DURATIONS) - 1, -1, -1):
        left = ticks - tokens.DURATIONS[number]
        if allowed[tokens.DURATION + number] and left >= 0 and (left == 0 or left % 3 == 0):
            return tokens.DURATION + number
    raise ValueError("the phrase has a rhythm that the model does not support, such as an incomplete triplet")
