"""An opening phrase: from ABC to a plan, and from a plan to the tokens that begin the tune. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from backend.tasks.music import tokens
from backend.tasks.music.abc_fields import AbcError
from backend.tasks.music.abc_music import Bar
from backend.tasks.music.abc_reader import read_phrase
from backend.tasks.music.abc_repeats import played
from backend.tasks.music.grid import Heading, Row, Slot
from backend.tasks.music.melody import opening_tonic
from backend.tasks.music.plan import MODES, TONICS, Opening, Plan
from backend.tasks.music.score import TICKS_PER_WHOLE, Note

MAX_BARS = 64
SECTION_BARS = 8  # a tune's sections are repeated anyway, so repeats in a longer phrase are not played out


@dataclass(frozen=True)
class Phrase:
    """What an ABC phrase says. `meter`, `tonic` and `mode` are None where it does not; `left_out` are sentences."""

    opening: Opening
    meter: tuple[int, int] | None
    tonic: str | None
    mode: str | None
    bars: int
    left_out: tuple[str, ...]


def read_opening(text: str, meter: tuple[int, int] | None = None, key: str | None = None) -> Phrase:
    """Reads a phrase; its repeats are played out where it then is no longer than a section.

    `meter` and `key` count where it names none.

    Raises AbcError where it cannot be read, or a note is shorter than the grid's ticks, or its mode has no tunes.
    """
    tune = read_phrase(text, meter, key)
    if tune.changes:
        what = "key" if "K" in tune.changes else "metre"
        raise AbcError(1, 1, f"the {what} changes within it", f"keep to one {what}")
    if tune.key is not None and tune.key.mode not in MODES:
        raise AbcError(1, 1, f"there is no {tune.key.mode} among the modes", f"use one of {', '.join(MODES)}")
    if tune.key is not None and tune.key.tonic not in TONICS:
        raise AbcError(1, 1, f"nobody writes the key of {tune.key.tonic}", "name the key by its usual name")
    shown = (4, 4) if tune.meter == (2, 2) else tune.meter
    top, bottom = shown or meter or (4, 4)
    bar_ticks = TICKS_PER_WHOLE * top // bottom
    pickup = tune.bars[0].ticks if len(tune.bars) > 1 and tune.bars[0].ticks < bar_ticks else Fraction(0)
    heard = played(tune.bars)
    if sum(bar.ticks for bar in heard) - pickup > SECTION_BARS * bar_ticks:
        heard = tune.bars
    notes, end = _sounding(heard)
    opening = Opening(int(pickup), notes, end)
    if opening.end - opening.pickup_ticks > MAX_BARS * bar_ticks:
        raise AbcError(1, 1, f"it is longer than {MAX_BARS} bars", "send the opening phrase alone")
    bars = -(-(opening.end - opening.pickup_ticks) // bar_ticks)
    tonic, mode = (tune.key.tonic, tune.key.mode) if tune.key else (None, None)
    return Phrase(opening, shown, tonic, mode, bars, tuple(tune.notes))


def _sounding(bars: list[Bar]) -> tuple[tuple[Note, ...], int]:
    """The notes, ties joined, and where the phrase ends. Raises AbcError where a rhythm is too fine."""
    notes: list[Note] = []
    at, tied = Fraction(0), False
    for bar in bars:
        for note in bar.notes:
            if (at + note.ticks).denominator != 1 or note.ticks == 0:
                raise AbcError(
                    bar.line, 1, "a rhythm is finer than 1/96 of a whole note", "use longer notes or triplets"
                )
            if note.pitch is not None and tied and notes and notes[-1].pitch == note.pitch:
                notes[-1] = Note(notes[-1].start, notes[-1].ticks + int(note.ticks), note.pitch)
            elif note.pitch is not None:
                notes.append(Note(int(at), int(note.ticks), note.pitch))
            at += note.ticks
            tied = note.tied
    return tuple(notes), int(at)


def opening_tokens(plan: Plan) -> list[int]:
    """The tokens of the plan's opening, pickups included, forced ones left out.

    Raises ValueError with a sentence where the phrase does not fit: too long, out of range, or a rhythm that the
    model's grid does not have.
    """
    opening = plan.opening
    assert opening is not None
    sections = tuple(section.bars for section in plan.tunes[0])
    row = Row(Heading(plan.form, plan.meter, plan.mode, sections))
    pickup = opening.pickup_ticks if opening.pickup_ticks in tokens.PICKUPS else 0
    if opening.pickup_ticks >= row.bar_ticks:
        raise ValueError("the phrase begins with more than a bar before its first barline")
    lead = row.bar_ticks - opening.pickup_ticks if opening.pickup_ticks != pickup else 0
    tonic = opening_tonic(TONICS[plan.tonic], opening.notes)
    found: list[int] = []

    def push(token: int) -> None:
        row.push(token)
        found.append(token)

    def write(token: int, ticks: int) -> None:
        while ticks:
            while row.slot in (Slot.FORCED, Slot.PICKUP):
                if row.slot is Slot.FORCED:
                    row.push(row.forced)
                else:
                    push(tokens.PICKUP + tokens.PICKUPS.index(pickup))
            if row.slot is Slot.DONE:
                raise ValueError(f"the phrase is longer than the {plan.bars} bars asked for")
            push(token)
            part = _largest(row, ticks)
            push(part)
            ticks -= tokens.DURATIONS[part - tokens.DURATION]
            token = token if token == tokens.REST else tokens.TIE

    write(tokens.REST, lead)
    at = 0
    for note in opening.notes:
        write(tokens.REST, note.start - at)
        if note.pitch - tonic not in tokens.PITCHES:
            raise ValueError("the phrase's range is wider than the model's, three octaves about the tonic")
        write(tokens.pitch_token(note.pitch - tonic), note.ticks)
        at = note.start + note.ticks
    write(tokens.REST, opening.end - at)
    return found


def _largest(row: Row, ticks: int) -> int:
    """The longest duration allowed that is at most `ticks` and leaves something that can be written too."""
    allowed = row.allowed()
    for number in range(len(tokens.DURATIONS) - 1, -1, -1):
        left = ticks - tokens.DURATIONS[number]
        if allowed[tokens.DURATION + number] and left >= 0 and (left == 0 or left % 3 == 0):
            return tokens.DURATION + number
    raise ValueError("the phrase has a rhythm that the model does not know, such as an incomplete triplet")
