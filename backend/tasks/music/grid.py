"""Where a tune stands in its grid of bars: which tokens may follow, and the side ids the model is told.

One rule for training and for composing. A row is pushed token after token; every bar comes out exact because only
durations that leave a fillable rest of the bar may follow. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from backend.tasks.music import tokens
from backend.tasks.music.score import TICKS_PER_WHOLE

# The side ids, in order, with the number of values of each; 0 is "none". Echoes are tokens: what stood at this place
# one, two and four bars before, and in the bar of the section before that had as many bars to go.
TICK_IDS, LEFT_IDS, PITCH_IDS, SECTION_IDS = 112, 20, len(tokens.PITCHES) + 1, 17
ECHO_BARS = (1, 2, 4)
SIDES = (TICK_IDS, LEFT_IDS, PITCH_IDS, SECTION_IDS, *(tokens.VOCABULARY,) * (len(ECHO_BARS) + 1))
NO_SIDES = (0,) * len(SIDES)


class Slot(Enum):
    """What the next token is."""

    FORCED = "a token that the plan fixes"
    PICKUP = "the pickup of a section"
    PITCH = "a pitch, a tie or a rest"
    DURATION = "a duration"
    DONE = "nothing, the tune is complete"


@dataclass(frozen=True)
class Heading:
    """What is fixed before the first note. `sections` holds the bars of each as written, at most sixteen.

    `first` is the number of sections that come before the ones in `sections`, `after` of those behind.
    """

    form: str
    meter: tuple[int, int]
    mode: str
    sections: tuple[int, ...]
    first: int = 0
    after: int = 0


@dataclass(frozen=True)
class Event:
    """Something written at a place of the grid; `token` is a pitch, a tie or a rest."""

    section: int
    left: int  # bars to go in the section with this one; one more than it has means the pickup
    tick: int
    token: int
    ticks: int


class Row:
    """A tune in the making."""

    def __init__(self, heading: Heading) -> None:
        self.heading = heading
        self.bar_ticks = TICKS_PER_WHOLE * heading.meter[0] // heading.meter[1]
        self.slot = Slot.FORCED
        self.events: list[Event] = []
        self.pickups: list[int] = []
        self.bars_done = 0
        self.section, self.left, self.tick = 0, 0, 0
        self._total = heading.first + len(heading.sections) + heading.after
        self._forced = [
            tokens.BOS,
            tokens.FORM + tokens.FORMS.index(heading.form),
            tokens.METER + tokens.METERS.index(heading.meter),
            tokens.MODE + tokens.MODES.index(heading.mode),
            tokens.SECTIONS + min(self._total, tokens.SECTIONS_MAX) - 1,
            tokens.BARS + heading.sections[0] - 1,
        ]
        self._token = tokens.PAD
        self._pitch_id = 0
        self._tick_before = 0
        self._places: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}

    @property
    def forced(self) -> int:
        """The next token where `slot` is FORCED."""
        return self._forced[0]

    @property
    def end(self) -> int:
        """The tick at which the current bar ends: the last of a section leaves room for the pickup."""
        return self.bar_ticks - (self.pickups[self.section] if self.left == 1 else 0)

    @property
    def last_bar(self) -> bool:
        """Whether this is the bar that the tune ends with."""
        return self.left == 1 and self.section == len(self.heading.sections) - 1 and not self.heading.after

    @property
    def on_tonic(self) -> bool:
        """Whether the pitch that sounded last is the tonic."""
        return self._pitch_id > 0 and tokens.PITCHES[self._pitch_id - 1] % 12 == 0

    def allowed(self) -> tuple[bool, ...]:
        """Whether each token of the whole vocabulary may come next."""
        if self.slot is Slot.DURATION:
            return _durations(self.tick, self.end, self._tick_before)
        if self.slot is Slot.PITCH:
            begins = not self.events or self.events[-1].section != self.section
            return _pitches(not begins and self.events[-1].token != tokens.REST)
        if self.slot is Slot.PICKUP:
            return _pickups(self.bar_ticks)
        return tuple(token == self.forced for token in range(tokens.VOCABULARY))

    def push(self, token: int) -> None:
        """Takes the next token; callers keep to `allowed`."""
        if self.slot is Slot.FORCED:
            del self._forced[0]
            if not self._forced:
                self.slot = Slot.PICKUP
        elif self.slot is Slot.PICKUP:
            self._begin(tokens.PICKUPS[token - tokens.PICKUP])
        elif self.slot is Slot.PITCH:
            self._token = token
            if tokens.PITCH <= token < tokens.TIE:
                self._pitch_id = token - tokens.PITCH + 1
            self.slot = Slot.DURATION
        elif self.slot is Slot.DURATION:
            self._write(tokens.DURATIONS[token - tokens.DURATION])

    def sides(self) -> tuple[int, ...]:
        """The side ids of the place where the next token stands, to be given with the token just pushed."""
        if self.slot not in (Slot.PITCH, Slot.DURATION):
            return NO_SIDES
        index = self.section + self.heading.first
        place = 1 + 4 * min(index, 3) + min(self._total - 1 - index, 3)
        return (self.tick + 1, self.left, self._pitch_id, place, *self._echoes())

    def _begin(self, pickup: int) -> None:
        self.pickups.append(pickup)
        bars = self.heading.sections[self.section]
        self.left = bars + 1 if pickup else bars
        self.tick = self.bar_ticks - pickup if pickup else 0
        self.slot = Slot.PITCH

    def _write(self, ticks: int) -> None:
        self.events.append(Event(self.section, self.left, self.tick, self._token, ticks))
        bar = self._places.setdefault((self.section, self.left), {})
        bar[self.tick] = (self._token, tokens.DURATION + tokens.DURATIONS.index(ticks))
        self.tick += ticks
        self._tick_before = ticks
        self.slot = Slot.PITCH
        if self.tick < self.end:
            return
        self.bars_done += self.left <= self.heading.sections[self.section]
        self.left -= 1
        self.tick = 0
        if self.left:
            return
        self.section += 1
        if self.section == len(self.heading.sections):
            self.slot = Slot.DONE
        else:
            self._forced = [tokens.BARS + self.heading.sections[self.section] - 1]
            self.slot = Slot.FORCED

    def _echoes(self) -> list[int]:
        found = []
        for back in (*ECHO_BARS, 0):
            bars = self.heading.sections[self.section]
            if back == 0:
                place = (self.section - 1, self.left)
            elif self.left + back <= bars or (
                self.left + back == bars + 1 and (self.section, bars + 1) in self._places
            ):
                place = (self.section, self.left + back)
            else:
                place = (self.section - 1, self.left + back - bars)
            bar = self._places.get(place)
            if bar is None:
                found.append(tokens.PAD)
            elif self.tick in bar:
                found.append(bar[self.tick][self.slot is Slot.DURATION])
            else:
                found.append(tokens.HOLD)
        return found


@cache
def _durations(tick: int, end: int, before: int) -> tuple[bool, ...]:
    """Within a triplet only its own duration may follow; a triplet may only begin where it can be completed."""
    allowed = [False] * tokens.VOCABULARY
    for number, ticks in enumerate(tokens.DURATIONS):
        if tick % 3:
            allowed[tokens.DURATION + number] = ticks == before
        else:
            needed = ticks if ticks % 3 == 0 else 3 * ticks
            allowed[tokens.DURATION + number] = tick + needed <= end
    return tuple(allowed)


@cache
def _pitches(tie: bool) -> tuple[bool, ...]:
    return tuple(
        tokens.PITCH <= token < tokens.DURATION and (tie or token != tokens.TIE) for token in range(tokens.VOCABULARY)
    )


@cache
def _pickups(bar_ticks: int) -> tuple[bool, ...]:
    return tuple(
        tokens.PICKUP <= token < tokens.PITCH and tokens.PICKUPS[token - tokens.PICKUP] < bar_ticks
        for token in range(tokens.VOCABULARY)
    )
