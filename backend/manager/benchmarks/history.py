"""The history of measurements on this machine, kept in a file of the data folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backend.common.json_file import JsonFile
from backend.common.types import Device, Speed

_FORMAT = 1
KEPT = 30  # measurements per device, engine and model


@dataclass(frozen=True)
class Measurement:
    """One measurement of a model on a device with an engine, and the conditions under which it stays valid.

    `versions` are the libraries' versions that the worker reported. `source` is `asked`, or `idle` for a measurement
    that the service started.
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
    busy: bool = False  # other programs or jobs ran meanwhile, so the device may be faster
    touchstone: str | None = None
    first_token_s: float | None = None
    prompt_per_s: float | None = None
    load_s: float | None = None
    memory_bytes: int | None = None

    @property
    def subject(self) -> tuple[str, str, str, str]:
        """What is compared with itself over time: device, card, engine and model."""
        return self.device, self.card, self.speed.engine, self.speed.model

    def counts_for(self, device: Device, driver: str | None) -> bool:
        """Return whether it is valid for a device as it is now: same card, driver, runtime and versions."""
        return (
            (self.card, self.hardware_id, self.driver) == (device.name, device.hardware_id, driver)
            and self.speed.engine in device.served_by.get(self.runtime, [])
            and all(device.versions.get(name, version) == version for name, version in self.versions.items())
        )


class Measurements:
    """The last measurements of each subject, oldest first. Default: kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path, "measurements", _FORMAT)
        self._all: list[Measurement] = []
        self.revision = 0  # increases with each change

    def open(self) -> None:
        """Read the file. A file that cannot be parsed counts as empty."""
        with contextlib.suppress(LookupError, TypeError):
            self._all = [_parse(fields) for fields in self._file.read() or ()]
        self.revision += 1

    def all(self, device: str | None = None, model: str | None = None) -> list[Measurement]:
        """Return all measurements, optionally of one device or model, oldest first."""
        return [m for m in self._all if device in (None, m.device) and model in (None, m.speed.model)]

    def valid(self, is_valid: Callable[[Measurement], bool]) -> list[Measurement]:
        """Return the last valid measurement of each subject; one of a busy machine only as a fallback."""
        ordered = sorted(filter(is_valid, self._all), key=lambda measurement: not measurement.busy)
        return list({measurement.subject: measurement for measurement in ordered}.values())

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Keep measurements, and delete the oldest ones beyond the limit of each subject."""
        self._all += measurements
        counts: dict[tuple[str, str, str, str], int] = {}
        kept = []
        for measurement in reversed(self._all):
            counts[measurement.subject] = counts.get(measurement.subject, 0) + 1
            if counts[measurement.subject] <= KEPT:
                kept.append(measurement)
        self._all = kept[::-1]
        self.revision += 1
        self._file.write([asdict(measurement) for measurement in self._all])


def _parse(fields: Mapping[str, Any]) -> Measurement:
    return Measurement(**{**fields, "speed": Speed(**fields["speed"])})
