"""What was measured on this machine, in a file of the data folder: by device, card, driver, runtime, engine, model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backend.common.json_file import JsonFile
from backend.common.types import Device, Speed

_FORMAT = 1
KEPT = 30  # of each device, engine and model


@dataclass(frozen=True)
class Measurement:
    """One measuring of a model on a device by an engine, and all that must be the same for it to count later.

    `versions` are those that the engine used, as its worker told them. `source` is `asked`, or `idle` if it was taken
    up by the service itself.
    """

    device: str
    card: str
    hardware_id: str | None
    driver: str | None
    runtime: str
    versions: dict[str, str]
    threads: int | None
    model_bytes: int | None
    speed: Speed
    runs: int
    source: str = "asked"
    busy: bool = False  # other programs or jobs computed meanwhile, so it may be faster than that
    touchstone: str | None = None
    first_token_s: float | None = None
    prompt_per_s: float | None = None
    load_s: float | None = None
    memory_bytes: int | None = None

    @property
    def subject(self) -> tuple[str, str, str, str]:
        """What is compared with itself over time."""
        return self.device, self.card, self.speed.engine, self.speed.model

    def counts_for(self, device: Device, driver: str | None) -> bool:
        """Whether it says anything of a device as it is now: the same card, driver, runtime and versions."""
        return (
            (self.card, self.hardware_id, self.driver) == (device.name, device.hardware_id, driver)
            and self.speed.engine in device.served_by.get(self.runtime, [])
            and all(device.versions.get(name, version) == version for name, version in self.versions.items())
        )


class Measurements:
    """Keeps the last ones of each device, engine and model, oldest first; without a path, for this process alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path, "measurements", _FORMAT)
        self._all: list[Measurement] = []
        self.revision = 0  # changes with each change

    def open(self) -> None:
        """Reads the file; one that cannot be read counts as empty."""
        with contextlib.suppress(LookupError, TypeError):
            self._all = [_read(one) for one in self._file.read() or ()]
        self.revision += 1

    def all(self, device: str | None = None, model: str | None = None) -> list[Measurement]:
        """All, or those of a device or a model, oldest first."""
        return [m for m in self._all if device in (None, m.device) and model in (None, m.speed.model)]

    def valid(self, counts: Callable[[Measurement], bool]) -> list[Measurement]:
        """Of each subject the last one that counts; one of a busy machine only where there is no other."""
        ordered = sorted(filter(counts, self._all), key=lambda one: not one.busy)  # the calm ones last
        return list({one.subject: one for one in ordered}.values())

    def add(self, found: Iterable[Measurement]) -> None:
        """Keeps them, and forgets the oldest of those that are more than are kept."""
        self._all += found
        counts: dict[tuple[str, str, str, str], int] = {}
        kept = []
        for one in reversed(self._all):
            counts[one.subject] = counts.get(one.subject, 0) + 1
            if counts[one.subject] <= KEPT:
                kept.append(one)
        self._all = kept[::-1]
        self.revision += 1
        self._file.write([asdict(one) for one in self._all])


def _read(fields: Mapping[str, Any]) -> Measurement:
    return Measurement(**{**fields, "speed": Speed(**fields["speed"])})
