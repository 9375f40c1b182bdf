"""A short benchmark that chooses the number of CPU threads. The network is too small to profit from many threads.

The number of threads does not change the logits: each one is a sum of the same terms in the same order, however the
rows are divided among threads (checked bit for bit with 1 to 32 threads). So a seed gives the same tune with any
number.
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

MAX_UNMEASURED = 4  # up to this number all threads are used without a measurement
ROUNDS, STEPS, ROWS = 3, 8, 8
TOLERANCE = 1.05  # times the best latency; of these candidates the one with the fewest threads is chosen


def thread_counts(threads: int) -> Sequence[int]:
    """Return the numbers of threads to measure, up to `threads`."""
    return [threads] if threads <= MAX_UNMEASURED else sorted({2, 4, 8, threads} - set(range(threads + 1, 9)))


def fastest_thread_count(
    decoders: Mapping[int, Decoder], clock: Callable[[], float] = time.perf_counter
) -> tuple[int, str]:
    """Return the best number of threads and a summary of the measurement. The decoders are measured in turn."""
    times: dict[int, list[float]] = {count: [] for count in decoders}
    ids, sides = np.full(ROWS, tokens.PITCH), np.array([NO_SIDES] * ROWS)
    for _ in range(ROUNDS):
        for count, decoder in decoders.items():
            decoder.start(ROWS, TOKENS_MAX)
            for _ in range(STEPS):
                started = clock()
                decoder.step(ids, sides)
                times[count].append(clock() - started)
    medians = {count: statistics.median(samples) for count, samples in times.items()}
    chosen = min(count for count, median in medians.items() if median <= TOLERANCE * min(medians.values()))
    listed = ", ".join(f"{1e3 * median:.2g} ms with {count}" for count, median in medians.items())
    return chosen, f"{chosen} threads were chosen by measurement: a decode step of {ROWS} tunes takes {listed}."
