"""A check of a decoder against a trusted one: both get the same tokens (teacher forcing); the logits are compared."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np

from backend.common.errors import ModelLoadFailed
from backend.tasks.audio.progress import Cancelled
from backend.tasks.music.composer import compose
from backend.tasks.music.decoder import Decoder, Floats, Ints
from backend.tasks.music.plan import Plan

MAX_STEPS = 24
MIN_STEPS, TIME_LIMIT_S = 4, 1.0  # a slow device does fewer steps
_PLAN = Plan("reel", (4, 4), "dorian", "E", 8)
_SEEDS = (1, 2)


class _PairedDecoder:
    """Steps two decoders with the same tokens and returns the logits of the trusted one."""

    def __init__(self, trusted: Decoder, other: Decoder) -> None:
        self._trusted = trusted
        self._other = other
        self.steps = 0
        self.max_difference = 0.0

    def start(self, batch: int, tokens: int) -> None:
        self._trusted.start(batch, tokens)
        self._other.start(batch, tokens)

    def step(self, ids: Ints, sides: Ints) -> Floats:
        logits = self._trusted.step(ids, sides)
        difference = float(np.abs(self._other.step(ids, sides) - logits).max())
        self.max_difference = max(self.max_difference, difference if np.isfinite(difference) else np.inf)
        self.steps += 1
        return logits


def check_agreement(
    trusted: Decoder, other: Decoder, tolerance: float, clock: Callable[[], float] = time.perf_counter
) -> str:
    """Compare the logits for the first tokens of two tunes, and return the result as evidence for the receipt.

    Stops after 24 steps, or after a second and at least four steps. Raises ModelLoadFailed if a logit differs by more
    than `tolerance`.
    """
    pair, started = _PairedDecoder(trusted, other), clock()

    def is_done() -> bool:
        return pair.steps >= MAX_STEPS or (pair.steps >= MIN_STEPS and clock() - started > TIME_LIMIT_S)

    with contextlib.suppress(Cancelled):
        compose(pair, _PLAN, _SEEDS, stop=is_done)
    if pair.max_difference > tolerance:
        raise ModelLoadFailed(
            f"The device's logits differ from the CPU's by {pair.max_difference:.2g}; {tolerance:g} is allowed.",
            "Choose another device, or update its driver and runtime.",
        )
    return f"Over {pair.steps} tokens its logits were within {pair.max_difference:.1g} of the CPU's."
