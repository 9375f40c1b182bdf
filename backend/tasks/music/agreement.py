"""Whether a decoder computes what a trusted one does: the same tokens for both (teacher forcing), logits compared."""

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

STEPS = 24
ENOUGH, LONG_S = 4, 1.0  # a device that is slow is asked for fewer
_PLAN = Plan("reel", (4, 4), "dorian", "E", 8)
_SEEDS = (1, 2)


class _Both:
    """Steps two decoders and goes on with what the trusted one says."""

    def __init__(self, trusted: Decoder, other: Decoder) -> None:
        self._trusted = trusted
        self._other = other
        self.steps = 0
        self.apart = 0.0

    def start(self, batch: int, tokens: int) -> None:
        self._trusted.start(batch, tokens)
        self._other.start(batch, tokens)

    def step(self, ids: Ints, sides: Ints) -> Floats:
        logits = self._trusted.step(ids, sides)
        apart = float(np.abs(self._other.step(ids, sides) - logits).max())
        self.apart = max(self.apart, apart if np.isfinite(apart) else np.inf)
        self.steps += 1
        return logits


def check_agreement(
    trusted: Decoder, other: Decoder, tolerance: float, clock: Callable[[], float] = time.perf_counter
) -> str:
    """Compares the logits of two tunes' first tokens; returns the evidence. Raises ModelLoadFailed beyond `tolerance`.

    Stops at 24 tokens, or after a second from the fourth on.
    """
    both, began = _Both(trusted, other), clock()

    def enough() -> bool:
        return both.steps >= STEPS or (both.steps >= ENOUGH and clock() - began > LONG_S)

    with contextlib.suppress(Cancelled):
        compose(both, _PLAN, _SEEDS, stop=enough)
    if both.apart > tolerance:
        raise ModelLoadFailed(
            f"The device gives logits that are off by {both.apart:.2g} from the processor's, more than {tolerance:g}.",
            "Choose another device, or update its driver and runtime.",
        )
    return f"Over {both.steps} tokens its logits were within {both.apart:.1g} of the processor's."
