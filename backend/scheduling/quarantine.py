"""Counts the deaths of workers, so that what keeps dying is not tried for ever.

Three deaths of a pair of device and model with no finished job between them put the pair in quarantine. The device
itself is not banned for a bad model: its own proof decides, and is asked for then.
"""

from __future__ import annotations

from backend.common.errors import TouchstoneError

DEATHS = 3


class Quarantine:
    """Keeps the pairs of device and model that died, and why."""

    def __init__(self) -> None:
        self._deaths: dict[tuple[str, str], int] = {}
        self.last: dict[tuple[str, str], TouchstoneError] = {}  # what ended a worker, until a job of the pair finishes

    def record_crash(self, device: str, model: str, error: TouchstoneError) -> bool:
        """Notes a death; True if it is the one that puts the pair in quarantine."""
        self._deaths[device, model] = self._deaths.get((device, model), 0) + 1
        self.last[device, model] = error
        return self._deaths[device, model] == DEATHS

    def record_success(self, device: str, model: str) -> None:
        """Notes a finished job: the count begins anew."""
        self._deaths.pop((device, model), None)
        self.last.pop((device, model), None)

    def models(self, device: str) -> list[str]:
        """The models that may not run on a device."""
        return [model for (where, model), deaths in self._deaths.items() if where == device and deaths >= DEATHS]

    def release(self, device: str, model: str | None = None) -> None:
        """Lets a pair, or all of a device, be tried again."""
        for pair in [pair for pair in self._deaths if pair[0] == device and model in (None, pair[1])]:
            self.record_success(*pair)
