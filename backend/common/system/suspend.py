"""Notices that the machine slept, since a driver may have lost its device meanwhile, and that its clock was set."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SLEEP_S = 5.0


def total_clock() -> float:
    """Seconds that go on while the machine sleeps. Where only the wall clock does, setting it looks like a sleep."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time() if boot is None else time.clock_gettime(boot)


class SuspendDetector:
    """Compares a clock that stops during sleep with one that does not."""

    def __init__(self, awake: Callable[[], float] = time.monotonic, total: Callable[[], float] = total_clock) -> None:
        self._clocks = awake, total
        self._last = awake(), total()

    def slept_s(self) -> float:
        """Seconds slept since the last call, 0 if it was no real sleep."""
        awake, total = (clock() for clock in self._clocks)
        slept_s = abs((total - self._last[1]) - (awake - self._last[0]))
        self._last = awake, total
        return slept_s if slept_s > SLEEP_S else 0.0


def steady_clock() -> float:
    """Seconds that go on while the machine sleeps, and that nobody can set."""
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)  # there it counts sleep, and `time.monotonic` does not
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ClockJumpDetector:
    """Compares the clock on the wall, which may be set, with a steady one."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_clock) -> None:
        self._clocks = wall, steady
        self._ahead = wall() - steady()

    def jumped_s(self) -> float:
        """By how many seconds the clock was set forward since the start; negative for back."""
        wall, steady = (clock() for clock in self._clocks)
        return wall - steady - self._ahead
