"""Quarantine: counts worker deaths by device and model, so that a pair that keeps dying is not retried forever.

Three deaths of a pair without a finished job in between quarantine the pair. A bad model does not quarantine the
device: the device is proved again, and that proof decides.
"""

from __future__ import annotations

from backend.common.errors import TouchstoneError

DEATHS = 3


class Quarantine:
    """The death counts of pairs of device and model, and the last error of each."""

    def __init__(self) -> None:
        self._deaths: dict[tuple[str, str], int] = {}
        self.last: dict[tuple[str, str], TouchstoneError] = {}  # kept until a job of the pair finishes
        self.revision = 0  # increases with each change

    def record_crash(self, device: str, model: str, error: TouchstoneError) -> bool:
        """Count a death. Return True if it is the one that starts the quarantine of the pair."""
        self._deaths[device, model] = self._deaths.get((device, model), 0) + 1
        self.last[device, model] = error
        self.revision += 1
        return self._deaths[device, model] == DEATHS

    def record_success(self, device: str, model: str) -> None:
        """Reset the count after a finished job."""
        self._deaths.pop((device, model), None)
        self.last.pop((device, model), None)
        self.revision += 1

    def models(self, device: str) -> list[str]:
        """Return the models in quarantine on a device."""
        return [model for (at, model), deaths in self._deaths.items() if at == device and deaths >= DEATHS]

    def release(self, device: str, model: str | None = None) -> None:
        """Lift the quarantine of a model on a device. Default: of all its models."""
        for pair in [pair for pair in self._deaths if pair[0] == device and model in (None, pair[1])]:
            self.record_success(*pair)
