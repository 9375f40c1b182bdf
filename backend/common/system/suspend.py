"""Detect that the machine was suspended, after which a driver may have lost its device, and that its clock was set."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SLEEP_S = 5.0


def total_clock() -> float:
    """Return a clock in seconds that counts suspend. Where only the wall clock does, setting it looks like suspend."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time() if boot is None else time.clock_gettime(boot)


class SuspendDetector:
    """Compares a clock that stops during suspend with one that does not."""

    def __init__(self, awake: Callable[[], float] = time.monotonic, total: Callable[[], float] = total_clock) -> None:
        self._clocks = awake, total
        self._last = awake(), total()

    def slept_s(self) -> float:
        """Return the seconds of suspend since the last call, 0 if they are below the threshold."""
        awake, total = (clock() for clock in self._clocks)
        slept_s = abs((total - self._last[1]) - (awake - self._last[0]))
        self._last = awake, total
        return slept_s if slept_s > SLEEP_S else 0.0


def steady_clock() -> float:
    """Return a clock in seconds that counts suspend and cannot be set."""
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)  # on macOS it counts suspend, `time.monotonic` does not
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ClockJumpDetector:
    """Compares the wall clock, which can be set, with a steady clock."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_clock) -> None:
        self._clocks = wall, steady
        self._ahead = wall() - steady()

    def jumped_s(self) -> float:
        """Return by how many seconds the clock was set forward since the start; negative for backward."""
        wall, steady = (clock() for clock in self._clocks)
        return wall - steady - self._ahead
