"""How many threads compute the network fastest on this processor, by a short measurement: it is too small for many.

Which number it is changes no logit: each number is a sum over the same terms in the same order, however the rows are
divided (checked bit for bit with 1 to 32 threads). So a choice by the clock does not touch what a seed gives.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from backend.tasks.music import tokens
from backend.tasks.music.composer import TOKENS_MAX
from backend.tasks.music.decoder import Decoder
from backend.tasks.music.grid import NO_SIDES

FEW = 4  # up to so many the processor gets all of them unmeasured
ROUNDS, STEPS, ROWS = 3, 8, 8
ALIKE = 1.05  # of the best one's time: of those the fewest threads, which leave the cores to others


def counts(threads: int) -> Sequence[int]:
    """The numbers of threads to try, of at most so many."""
    return [threads] if threads <= FEW else sorted({2, 4, 8, threads} - set(range(threads + 1, 9)))


def fastest(decoders: Mapping[int, Decoder], clock: Callable[[], float] = time.perf_counter) -> tuple[int, str]:
    """The number of threads whose decoder steps fastest, and that in a sentence; measured in turns."""
    times: dict[int, list[float]] = {count: [] for count in decoders}
    ids, sides = np.full(ROWS, tokens.PITCH), np.array([NO_SIDES] * ROWS)
    for _ in range(ROUNDS):
        for count, decoder in decoders.items():
            decoder.start(ROWS, TOKENS_MAX)
            for _ in range(STEPS):
                began = clock()
                decoder.step(ids, sides)
                times[count].append(clock() - began)
    medians = {count: statistics.median(found) for count, found in times.items()}
    chosen = min(count for count, median in medians.items() if median <= ALIKE * min(medians.values()))
    listed = ", ".join(f"{1e3 * median:.2g} ms with {count}" for count, median in medians.items())
    return chosen, f"{chosen} threads were chosen by measurement: a step of {ROWS} tunes takes {listed}."
