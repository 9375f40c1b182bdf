"""Composes tunes with any decoder: grid, temperature, top-p, a random stream of its own for each tune. NumPy alone.

A variation's notes depend on its seed and not on its neighbours in the batch, as far as the decoder's floats do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from backend.common.error_patterns import require_finite
from backend.tasks.audio.progress import Cancelled
from backend.tasks.music import tokens
from backend.tasks.music.decoder import Decoder, Floats
from backend.tasks.music.grid import NO_SIDES, Heading, Row, Slot
from backend.tasks.music.melody import melody
from backend.tasks.music.opening import opening_tokens
from backend.tasks.music.originality import CopyGuard
from backend.tasks.music.plan import Plan, Section
from backend.tasks.music.score import Melody

ROWS_MAX = 64  # tunes composed at the same time; more wait, so that memory stays bounded
TOKENS_MAX = 1024  # of one tune; one that comes near it gets long notes until it is complete
# Added to the logits of the tonic in the second half of a tune's last bar, and taken from those of durations that would
# end it on another note, because the model ends on the tonic a little less often than players do.
CADENCE_BONUS = 2.0


class _Part:
    """One tune of one variation, while it is composed."""

    def __init__(self, plan: Plan, sections: tuple[Section, ...], seed: int, number: int) -> None:
        self.plan = plan
        self.sections = sections
        self.row = Row(Heading(plan.form, plan.meter, plan.mode, tuple(section.bars for section in sections)))
        self.random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, number])))
        first = number == 0
        self.given = deque(opening_tokens(plan) if first and plan.opening else ())
        # Where tunes follow each other no pickup may overlap the bar before it.
        self.pickup = tokens.PICKUP if not (plan.pickup and first) and not self.given else None
        self.used = 0
        self.heard = 0

    def choice(self) -> int | None:
        """The next token where there is nothing to choose; None where the model decides."""
        if self.row.slot is Slot.DONE:
            return tokens.PAD
        if self.row.slot is Slot.FORCED:
            return self.row.forced
        if self.given:
            return self.given.popleft()
        if self.row.slot is Slot.PICKUP:
            return tokens.PICKUP + tokens.PICKUPS.index(self.row.pickups[0]) if self.row.pickups else self.pickup
        return None

    def push(self, token: int) -> None:
        """Takes a token and counts the bars heard."""
        if self.row.slot is Slot.DONE:
            return
        before, section = self.row.bars_done, self.row.section
        self.row.push(token)
        self.used += 1
        if self.row.bars_done > before:
            self.heard += self.sections[section].times

    @property
    def hurried(self) -> bool:
        """Whether only long notes may follow, lest the tune outgrow the decoder's memory."""
        rest = sum(section.bars for section in self.sections) - self.row.bars_done
        return self.used + 4 * rest + 4 * len(self.sections) + 64 > TOKENS_MAX


def compose(
    decoder: Decoder,
    plan: Plan,
    seeds: Sequence[int],
    on_bar: Callable[[int, int], bool] | None = None,
    stop: Callable[[], bool] | None = None,
    guard: CopyGuard | None = None,
) -> list[Melody]:
    """One melody for each seed, all as one batch.

    `on_bar(done, total)` hears of bars as they are completed, counted as heard and over all variations; `stop()` is
    asked before each token. Either returns True to end it: Stopped is raised then. Raises ValueError where the
    plan's opening does not fit its grid.
    """
    rows = compose_rows(decoder, [plan] * len(seeds), seeds, on_bar, stop, guard)
    each = len(plan.tunes)
    return [melody(plan, rows[at : at + each]) for at in range(0, len(rows), each)]


def compose_rows(
    decoder: Decoder,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    on_bar: Callable[[int, int], bool] | None = None,
    stop: Callable[[], bool] | None = None,
    guard: CopyGuard | None = None,
) -> list[Row]:
    """As `compose` with a plan for each seed, but the tunes as written: those of each seed's set after each other.

    All plans have the same temperature and top-p.
    """
    parts = [
        _Part(plan, sections, seed, number)
        for plan, seed in zip(plans, seeds, strict=True)
        for number, sections in enumerate(plan.tunes)
    ]
    total = sum(plan.bars for plan in plans)
    told = 0
    for at in range(0, len(parts), ROWS_MAX):
        batch = parts[at : at + ROWS_MAX]
        decoder.start(len(batch), TOKENS_MAX)
        logits: Floats | None = None
        while True:
            if stop is not None and stop():
                raise Cancelled
            ids = _next(batch, logits, guard)
            for part, token in zip(batch, ids, strict=True):
                part.push(token)
            done = sum(part.heard for part in parts)
            if done > told:
                told = done
                if on_bar is not None and on_bar(done, total):
                    raise Cancelled
            if all(part.row.slot is Slot.DONE for part in batch):
                break
            sides = [NO_SIDES if part.row.slot is Slot.DONE else part.row.sides() for part in batch]
            logits = decoder.step(np.array(ids, np.int64), np.array(sides, np.int64))
            require_finite(float(logits.max()))
    return [part.row for part in parts]


def _next(batch: list[_Part], logits: Floats | None, guard: CopyGuard | None) -> list[int]:
    choices = [part.choice() for part in batch]
    open_rows = [number for number, token in enumerate(choices) if token is None]
    if open_rows:
        assert logits is not None
        drawn = _draw([batch[number] for number in open_rows], logits[open_rows].astype(np.float64), guard)
        for number, token in zip(open_rows, drawn, strict=True):
            choices[number] = token
    return [token for token in choices if token is not None]


def _draw(parts: list[_Part], logits: NDArray[np.float64], guard: CopyGuard | None) -> list[int]:
    """One token for each row by temperature among what the grid allows; top-p is for pitches."""
    plan = parts[0].plan
    mask = np.stack([_mask(part.row.allowed()) for part in parts])
    top_p = np.full((len(parts), 1), plan.top_p)
    for number, part in enumerate(parts):
        if part.row.slot is Slot.PITCH:
            if part.row.last_bar and 2 * part.row.tick >= part.row.bar_ticks:
                logits[number, _tonics()] += CADENCE_BONUS
            if guard is not None:
                mask[number] &= guard.allowed(part.row)
            continue
        # Rhythm is held in bounds by the grid already; with top-p all marches would be even, as most are.
        top_p[number] = 1.0
        if part.row.last_bar and part.row.slot is Slot.DURATION and not part.row.on_tonic:
            ending = part.row.end - part.row.tick
            if ending in tokens.DURATIONS:
                logits[number, tokens.DURATION + tokens.DURATIONS.index(ending)] -= CADENCE_BONUS
        if part.row.slot is Slot.DURATION and part.hurried:
            mask[number, : np.flatnonzero(mask[number])[-1]] = False
    logits = np.where(mask, logits, -np.inf)
    if plan.temperature == 0:
        return [int(token) for token in logits.argmax(axis=1)]
    logits = (logits - logits.max(axis=1, keepdims=True)) / plan.temperature
    weights = np.exp(logits)
    weights /= weights.sum(axis=1, keepdims=True)
    order = np.argsort(-weights, axis=1, kind="stable")
    ranked = np.take_along_axis(weights, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked
    ranked = np.where(before < top_p, ranked, 0.0)
    sums = np.cumsum(ranked, axis=1)
    drawn = np.array([part.random.random() for part in parts])[:, None] * sums[:, -1:]
    places = np.minimum((sums <= drawn).sum(axis=1), (ranked > 0).sum(axis=1) - 1)
    return [int(order[number, place]) for number, place in enumerate(places)]


@lru_cache(maxsize=4096)
def _mask(allowed: tuple[bool, ...]) -> NDArray[np.bool_]:
    return np.array(allowed)


@lru_cache(maxsize=1)
def _tonics() -> NDArray[np.int64]:
    return np.array([tokens.pitch_token(pitch) for pitch in tokens.PITCHES if pitch % 12 == 0])
