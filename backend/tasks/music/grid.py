"""The grid of bars of a tune: it determines which tokens may follow, and the side ids, the model's position features.

Training and sampling share it. Tokens are pushed one by one. Every bar is exactly full, since only durations are
allowed that leave a remainder that can be filled. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from backend.tasks.music import tokens
from backend.tasks.music.score import TICKS_PER_WHOLE

# The number of values of each side id, in order; 0 is "none". The last four are echoes: the tokens at this position
# one, two and four bars earlier, and in the corresponding bar of the previous section, counted from its end.
TICK_IDS, LEFT_IDS, PITCH_IDS, SECTION_IDS = 112, 20, len(tokens.PITCHES) + 1, 17
ECHO_BARS = (1, 2, 4)
SIDES = (TICK_IDS, LEFT_IDS, PITCH_IDS, SECTION_IDS, *(tokens.VOCABULARY,) * (len(ECHO_BARS) + 1))
NO_SIDES = (0,) * len(SIDES)


class Slot(Enum):
    """The kind of the next token."""

    FORCED = "a token that the plan fixes"
    PICKUP = "the pickup of a section"
    PITCH = "a pitch, a tie or a rest"
    DURATION = "a duration"
    DONE = "none, the tune is complete"


@dataclass(frozen=True)
class Heading:
    """What is fixed before the first note. `sections` are the bars of each section as written, at most sixteen.

    `first` and `after` are the numbers of sections before and after those in `sections`.
    """

    form: str
    meter: tuple[int, int]
    mode: str
    sections: tuple[int, ...]
    first: int = 0
    after: int = 0


@dataclass(frozen=True)
class Event:
    """A pitch, tie or rest at a position of the grid, with its duration in ticks."""

    section: int
    bars_left: int  # bars left in the section, including this one; one more than the section's bars for the pickup
    tick: int
    token: int
    ticks: int


class TuneGrid:
    """The grid of one tune, filled token by token."""

    def __init__(self, heading: Heading) -> None:
        self.heading = heading
        self.bar_ticks = TICKS_PER_WHOLE * heading.meter[0] // heading.meter[1]
        self.slot = Slot.FORCED
        self.events: list[Event] = []
        self.pickups: list[int] = []
        self.bars_done = 0
        self.section, self.bars_left, self.tick = 0, 0, 0
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
        self._written: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}

    @property
    def forced_token(self) -> int:
        """The next token if `slot` is FORCED."""
        return self._forced[0]

    @property
    def end(self) -> int:
        """The tick at which the current bar ends. The last bar of a section is shorter by the section's pickup."""
        return self.bar_ticks - (self.pickups[self.section] if self.bars_left == 1 else 0)

    @property
    def is_last_bar(self) -> bool:
        """Whether this is the last bar of the tune."""
        return self.bars_left == 1 and self.section == len(self.heading.sections) - 1 and not self.heading.after

    @property
    def is_on_tonic(self) -> bool:
        """Whether the last pitch is the tonic."""
        return self._pitch_id > 0 and tokens.PITCHES[self._pitch_id - 1] % 12 == 0

    def allowed_tokens(self) -> tuple[bool, ...]:
        """Return whether each token of the vocabulary may come next."""
        if self.slot is Slot.DURATION:
            return _allowed_durations(self.tick, self.end, self._tick_before)
        if self.slot is Slot.PITCH:
            starts_section = not self.events or self.events[-1].section != self.section
            return _allowed_pitches(not starts_section and self.events[-1].token != tokens.REST)
        if self.slot is Slot.PICKUP:
            return _allowed_pickups(self.bar_ticks)
        return tuple(token == self.forced_token for token in range(tokens.VOCABULARY))

    def push(self, token: int) -> None:
        """Append the next token, which must be one of `allowed_tokens`."""
        if self.slot is Slot.FORCED:
            del self._forced[0]
            if not self._forced:
                self.slot = Slot.PICKUP
        elif self.slot is Slot.PICKUP:
            self._start_section(tokens.PICKUPS[token - tokens.PICKUP])
        elif self.slot is Slot.PITCH:
            self._token = token
            if tokens.PITCH <= token < tokens.TIE:
                self._pitch_id = token - tokens.PITCH + 1
            self.slot = Slot.DURATION
        elif self.slot is Slot.DURATION:
            self._add_event(tokens.DURATIONS[token - tokens.DURATION])

    def side_ids(self) -> tuple[int, ...]:
        """Return the side ids of the next token's position. The model gets them with the token just pushed."""
        if self.slot not in (Slot.PITCH, Slot.DURATION):
            return NO_SIDES
        index = self.section + self.heading.first
        section_id = 1 + 4 * min(index, 3) + min(self._total - 1 - index, 3)
        return (self.tick + 1, self.bars_left, self._pitch_id, section_id, *self._echoes())

    def _start_section(self, pickup: int) -> None:
        self.pickups.append(pickup)
        bars = self.heading.sections[self.section]
        self.bars_left = bars + 1 if pickup else bars
        self.tick = self.bar_ticks - pickup if pickup else 0
        self.slot = Slot.PITCH

    def _add_event(self, ticks: int) -> None:
        self.events.append(Event(self.section, self.bars_left, self.tick, self._token, ticks))
        bar = self._written.setdefault((self.section, self.bars_left), {})
        bar[self.tick] = (self._token, tokens.DURATION + tokens.DURATIONS.index(ticks))
        self.tick += ticks
        self._tick_before = ticks
        self.slot = Slot.PITCH
        if self.tick < self.end:
            return
        self.bars_done += self.bars_left <= self.heading.sections[self.section]
        self.bars_left -= 1
        self.tick = 0
        if self.bars_left:
            return
        self.section += 1
        if self.section == len(self.heading.sections):
            self.slot = Slot.DONE
        else:
            self._forced = [tokens.BARS + self.heading.sections[self.section] - 1]
            self.slot = Slot.FORCED

    def _echoes(self) -> list[int]:
        echoes = []
        for back in (*ECHO_BARS, 0):
            bars = self.heading.sections[self.section]
            if back == 0:
                place = (self.section - 1, self.bars_left)
            elif self.bars_left + back <= bars or (
                self.bars_left + back == bars + 1 and (self.section, bars + 1) in self._written
            ):
                place = (self.section, self.bars_left + back)
            else:
                place = (self.section - 1, self.bars_left + back - bars)
            bar = self._written.get(place)
            if bar is None:
                echoes.append(tokens.PAD)
            elif self.tick in bar:
                echoes.append(bar[self.tick][self.slot is Slot.DURATION])
            else:
                echoes.append(tokens.HOLD)
        return echoes


@cache
def _allowed_durations(tick: int, end: int, before: int) -> tuple[bool, ...]:
    """Return the allowed tokens for a duration: a triplet must be completed, and must fit into the bar."""
    allowed = [False] * tokens.VOCABULARY
    for number, ticks in enumerate(tokens.DURATIONS):
        if tick % 3:
            allowed[tokens.DURATION + number] = ticks == before
        else:
            needed = ticks if ticks % 3 == 0 else 3 * ticks
            allowed[tokens.DURATION + number] = tick + needed <= end
    return tuple(allowed)


@cache
def _allowed_pitches(tie: bool) -> tuple[bool, ...]:
    return tuple(
        tokens.PITCH <= token < tokens.DURATION and (tie or token != tokens.TIE) for token in range(tokens.VOCABULARY)
    )


@cache
def _allowed_pickups(bar_ticks: int) -> tuple[bool, ...]:
    return tuple(
        tokens.PICKUP <= token < tokens.PITCH and tokens.PICKUPS[token - tokens.PICKUP] < bar_ticks
        for token in range(tokens.VOCABULARY)
    )
