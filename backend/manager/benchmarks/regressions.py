"""What became slower with an update: two measurings of one thing, between which a version or the driver changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backend.manager.benchmarks.history import Measurement
from backend.scheduling.ranking import NOISE

SLOWER = 0.8  # of the rate before: worth a word
BASE = "base"


@dataclass(frozen=True)
class Regression:
    """`now` is slower than `before` by more than the noise, and `changed` names what changed in between."""

    before: Measurement
    now: Measurement
    changed: dict[str, tuple[str | None, str | None]]

    @property
    def problem(self) -> dict[str, str | None]:
        """As health states it."""
        speed, was = self.now.speed, self.before.speed
        changes = ", ".join(
            f"{name} {old or '(none)'} → {new or '(none)'}" for name, (old, new) in self.changed.items()
        )
        return {
            "subject": self.now.device,
            "code": "slower_after_update",
            "detail": f"{speed.model} with {speed.engine} is {1 - speed.value / was.value:.0%} slower on "
            f"{self.now.device} since an update: {was.value:.3g} → {speed.value:.3g} {speed.unit}; changed: {changes}.",
            "remedy": f"{self._back} `bench devices --device {self.now.device} --model {speed.model}` measures again.",
        }

    @property
    def _back(self) -> str:
        packages = {
            name: old for name, (old, _) in self.changed.items() if old and name not in ("driver", "Touchstone")
        }
        if packages and self.now.runtime != BASE:
            return f"`runtimes rollback {self.now.runtime}` goes back to the version before."
        if packages:
            wanted = " ".join(f"{name}=={old}" for name, old in packages.items())
            return f"`python -m pip install {wanted}` in the service's environment goes back."
        if "driver" in self.changed:
            return f"Install the driver {self.changed['driver'][0]} again, or a newer one."
        return "Report it with what `doctor` says."


def regressions(measurements: Iterable[Measurement]) -> list[Regression]:
    """What the newest measuring of each subject says against the last one before an update, both by a calm machine."""
    histories: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for one in (one for one in measurements if not one.busy):
        histories.setdefault(one.subject, []).append(one)
    found = (_of(history) for history in histories.values())
    return [one for one in found if one]


def _of(history: list[Measurement]) -> Regression | None:
    now = history[-1]
    comparable = [m for m in history if m.model_bytes == now.model_bytes and m.speed.unit == now.speed.unit]
    before = next((m for m in reversed(comparable) if _changed(m, now)), None)
    if before is None or now.speed.value >= SLOWER * before.speed.value:
        return None
    most = max(now.speed.high or 0, now.speed.value * (1 + NOISE))
    least = min(before.speed.low or before.speed.value, before.speed.value * (1 - NOISE))
    return Regression(before, now, _changed(before, now)) if most < least else None


def _changed(before: Measurement, now: Measurement) -> dict[str, tuple[str | None, str | None]]:
    old, new = _versions(before), _versions(now)
    return {name: (old.get(name), new.get(name)) for name in (*old, *new) if old.get(name) != new.get(name)}


def _versions(one: Measurement) -> dict[str, str]:
    """All that an update may have changed."""
    more = {"driver": one.driver, "Touchstone": one.touchstone}
    return {**one.versions, **{name: version for name, version in more.items() if version}}
