"""Regressions: a subject that became slower between two measurements, while a version or the driver changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backend.common.commands import command
from backend.manager.benchmarks.history import Measurement
from backend.scheduling.ranking import NOISE

SLOWER = 0.8  # share of the earlier rate below which a regression is reported
BASE = "base"


@dataclass(frozen=True)
class Regression:
    """`now` is slower than `before` by more than the noise. `changed` has the (old, new) versions that differ."""

    before: Measurement
    now: Measurement
    changed: dict[str, tuple[str | None, str | None]]

    @property
    def problem(self) -> dict[str, str | None]:
        """The regression as a problem of `GET /api/health`."""
        speed, was = self.now.speed, self.before.speed
        changes = ", ".join(
            f"{name} {old or '(none)'} → {new or '(none)'}" for name, (old, new) in self.changed.items()
        )
        return {
            "subject": self.now.device,
            "code": "slower_after_update",
            "detail": f"{speed.model} with {speed.engine} is {1 - speed.value / was.value:.0%} slower on "
            f"{self.now.device} since an update: {was.value:.3g} → {speed.value:.3g} {speed.unit}; changed: {changes}.",
            "remedy": f"{self._how_to_revert} To measure again: `"
            f"{command(f'bench devices --device {self.now.device} --model {speed.model}')}`.",
        }

    @property
    def _how_to_revert(self) -> str:
        packages = {
            name: old for name, (old, _) in self.changed.items() if old and name not in ("driver", "Touchstone")
        }
        if packages and self.now.runtime != BASE:
            return f"To go back to the previous version: `{command(f'runtimes rollback {self.now.runtime}')}`."
        if packages:
            pins = " ".join(f"{name}=={old}" for name, old in packages.items())
            return f"To go back, run `python -m pip install {pins}` in the service's environment."
        if "driver" in self.changed:
            return f"Install the driver {self.changed['driver'][0]} again, or a newer one."
        return f"Report it with the output of `{command('doctor')}`."


def regressions(measurements: Iterable[Measurement]) -> list[Regression]:
    """Compare the newest measurement of each subject with the last one before an update.

    Measurements of a busy machine are ignored.
    """
    histories: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for measurement in measurements:
        if not measurement.busy:
            histories.setdefault(measurement.subject, []).append(measurement)
    return [regression for history in histories.values() if (regression := _regression_in(history))]


def _regression_in(history: list[Measurement]) -> Regression | None:
    now = history[-1]
    comparable = [m for m in history if m.model_bytes == now.model_bytes and m.speed.unit == now.speed.unit]
    before = next((m for m in reversed(comparable) if _changed(m, now)), None)
    if before is None or now.speed.value >= SLOWER * before.speed.value:
        return None
    highest_now = max(now.speed.high or 0, now.speed.value * (1 + NOISE))
    lowest_before = min(before.speed.low or before.speed.value, before.speed.value * (1 - NOISE))
    return Regression(before, now, _changed(before, now)) if highest_now < lowest_before else None


def _changed(before: Measurement, now: Measurement) -> dict[str, tuple[str | None, str | None]]:
    old, new = _versions(before), _versions(now)
    return {name: (old.get(name), new.get(name)) for name in (*old, *new) if old.get(name) != new.get(name)}


def _versions(measurement: Measurement) -> dict[str, str]:
    """Return all versions that an update may change, the driver and Touchstone included."""
    more = {"driver": measurement.driver, "Touchstone": measurement.touchstone}
    return {**measurement.versions, **{name: version for name, version in more.items() if version}}
