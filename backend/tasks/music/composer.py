"""Sampling of tunes with any decoder: grid constraints, temperature, top-p, and a random generator per tune.

The notes of a variation depend on its seed, not on the other sequences in the batch, if the decoder's logits do not.
Needs NumPy only.
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
from backend.tasks.music.grid import NO_SIDES, Heading, Slot, TuneGrid
from backend.tasks.music.melody import build_melody
from backend.tasks.music.opening import opening_tokens
from backend.tasks.music.originality import CopyGuard
from backend.tasks.music.plan import Plan, Section
from backend.tasks.music.score import Melody

ROWS_MAX = 64  # largest batch, which bounds memory; more tunes are composed in further batches
TOKENS_MAX = 1024  # per tune; near this limit only the longest note duration is sampled
# Added to the logits of the tonic in the second half of a tune's last bar, and subtracted from the logit of the
# duration that would end it on another note: the model ends on the tonic slightly less often than the tunes that it was
# trained on.
CADENCE_BONUS = 2.0


class _Sequence:
    """A sequence in the batch: one tune of one variation while it is composed."""

    def __init__(self, plan: Plan, sections: tuple[Section, ...], seed: int, number: int) -> None:
        self.plan = plan
        self.sections = sections
        self.row = TuneGrid(Heading(plan.form, plan.meter, plan.mode, tuple(section.bars for section in sections)))
        self.random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, number])))
        first = number == 0
        self.opening_tokens = deque(opening_tokens(plan) if first and plan.opening else ())
        # In a set of tunes, a pickup must not overlap the last bar of the previous tune.
        self.pickup = tokens.PICKUP if not (plan.pickup and first) and not self.opening_tokens else None
        self.token_count = 0
        self.bars_played = 0

    def forced_token(self) -> int | None:
        """Return the next token if it is fixed; None if the model chooses it."""
        if self.row.slot is Slot.DONE:
            return tokens.PAD
        if self.row.slot is Slot.FORCED:
            return self.row.forced_token
        if self.opening_tokens:
            return self.opening_tokens.popleft()
        if self.row.slot is Slot.PICKUP:
            return tokens.PICKUP + tokens.PICKUPS.index(self.row.pickups[0]) if self.row.pickups else self.pickup
        return None

    def push(self, token: int) -> None:
        """Append a token and count the bars played."""
        if self.row.slot is Slot.DONE:
            return
        before, section = self.row.bars_done, self.row.section
        self.row.push(token)
        self.token_count += 1
        if self.row.bars_done > before:
            self.bars_played += self.sections[section].times

    @property
    def is_near_limit(self) -> bool:
        """Whether only long notes may follow, so that the tune stays below TOKENS_MAX."""
        bars_left = sum(section.bars for section in self.sections) - self.row.bars_done
        return self.token_count + 4 * bars_left + 4 * len(self.sections) + 64 > TOKENS_MAX


def compose(
    decoder: Decoder,
    plan: Plan,
    seeds: Sequence[int],
    on_bar: Callable[[int, int], bool] | None = None,
    stop: Callable[[], bool] | None = None,
    guard: CopyGuard | None = None,
) -> list[Melody]:
    """Compose one melody per seed, in batches.

    The callback `on_bar(done, total)` gets the number of finished bars over all variations, repeats included; the
    callback `stop()` is called before each token. Raises Cancelled if one of them returns True, ValueError if the
    plan's opening does not fit its grid.
    """
    grids = compose_rows(decoder, [plan] * len(seeds), seeds, on_bar, stop, guard)
    tune_count = len(plan.tunes)
    return [build_melody(plan, grids[first : first + tune_count]) for first in range(0, len(grids), tune_count)]


def compose_rows(
    decoder: Decoder,
    plans: Sequence[Plan],
    seeds: Sequence[int],
    on_bar: Callable[[int, int], bool] | None = None,
    stop: Callable[[], bool] | None = None,
    guard: CopyGuard | None = None,
) -> list[TuneGrid]:
    """Compose with one plan per seed, and return the grids of all tunes: for each seed, those of its set in order.

    The plans must share temperature and top-p. Callbacks and exceptions are those of `compose`.
    """
    sequences = [
        _Sequence(plan, sections, seed, number)
        for plan, seed in zip(plans, seeds, strict=True)
        for number, sections in enumerate(plan.tunes)
    ]
    total = sum(plan.bars for plan in plans)
    reported = 0
    for first in range(0, len(sequences), ROWS_MAX):
        batch = sequences[first : first + ROWS_MAX]
        decoder.start(len(batch), TOKENS_MAX)
        logits: Floats | None = None
        while True:
            if stop is not None and stop():
                raise Cancelled
            ids = _next_tokens(batch, logits, guard)
            for part, token in zip(batch, ids, strict=True):
                part.push(token)
            done = sum(part.bars_played for part in sequences)
            if done > reported:
                reported = done
                if on_bar is not None and on_bar(done, total):
                    raise Cancelled
            if all(part.row.slot is Slot.DONE for part in batch):
                break
            sides = [NO_SIDES if part.row.slot is Slot.DONE else part.row.side_ids() for part in batch]
            logits = decoder.step(np.array(ids, np.int64), np.array(sides, np.int64))
            require_finite(float(logits.max()))
    return [part.row for part in sequences]


def _next_tokens(batch: list[_Sequence], logits: Floats | None, guard: CopyGuard | None) -> list[int]:
    choices = [part.forced_token() for part in batch]
    open_rows = [number for number, token in enumerate(choices) if token is None]
    if open_rows:
        assert logits is not None
        sampled = _sample([batch[number] for number in open_rows], logits[open_rows].astype(np.float64), guard)
        for number, token in zip(open_rows, sampled, strict=True):
            choices[number] = token
    return [token for token in choices if token is not None]


def _sample(sequences: list[_Sequence], logits: NDArray[np.float64], guard: CopyGuard | None) -> list[int]:
    """Sample one token per sequence from the tokens that the grid allows. Top-p applies to pitches only."""
    plan = sequences[0].plan
    mask = np.stack([_token_mask(part.row.allowed_tokens()) for part in sequences])
    top_p = np.full((len(sequences), 1), plan.top_p)
    for number, part in enumerate(sequences):
        if part.row.slot is Slot.PITCH:
            if part.row.is_last_bar and 2 * part.row.tick >= part.row.bar_ticks:
                logits[number, _tonic_tokens()] += CADENCE_BONUS
            if guard is not None:
                mask[number] &= guard.allowed_tokens(part.row)
            continue
        # The grid already bounds the rhythm; with top-p, every march would get the even rhythm that most have.
        top_p[number] = 1.0
        if part.row.is_last_bar and part.row.slot is Slot.DURATION and not part.row.is_on_tonic:
            ending = part.row.end - part.row.tick
            if ending in tokens.DURATIONS:
                logits[number, tokens.DURATION + tokens.DURATIONS.index(ending)] -= CADENCE_BONUS
        if part.row.slot is Slot.DURATION and part.is_near_limit:
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
    thresholds = np.array([part.random.random() for part in sequences])[:, None] * sums[:, -1:]
    ranks = np.minimum((sums <= thresholds).sum(axis=1), (ranked > 0).sum(axis=1) - 1)
    return [int(order[number, place]) for number, place in enumerate(ranks)]


@lru_cache(maxsize=4096)
def _token_mask(allowed: tuple[bool, ...]) -> NDArray[np.bool_]:
    return np.array(allowed)


@lru_cache(maxsize=1)
def _tonic_tokens() -> NDArray[np.int64]:
    return np.array([tokens.pitch_token(pitch) for pitch in tokens.PITCHES if pitch % 12 == 0])
