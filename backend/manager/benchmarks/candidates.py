"""What there is to measure: each way of running a model, by device, runtime and engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.common.errors import DeviceNotReady, TouchstoneError
from backend.common.types import Device
from backend.models import Entry
from backend.scheduling.device_resolution import in_order
from backend.scheduling.target_selection import refusal_of
from backend.scheduling.worker import WorkerKey

if TYPE_CHECKING:
    from backend.manager.core import Core

TASKS = ("text", "music")  # those that the figures are defined for


@dataclass(frozen=True)
class Candidate:
    """A model on a device by an engine."""

    device: Device
    runtime: str
    engine: str
    entry: Entry

    @property
    def key(self) -> WorkerKey:
        """The worker that runs it."""
        return WorkerKey(self.device.id, self.runtime, self.engine, self.entry.id)

    @property
    def words(self) -> str:
        """How it is named in sentences."""
        return f"{self.entry.id} on {self.device.id} with {self.engine}"


@dataclass(frozen=True)
class Skipped:
    """What was asked for and could not be measured."""

    device: str
    engine: str | None
    model: str | None
    reason: str


def candidates(
    manager: Core, entries: Sequence[Entry], devices: Sequence[str], engines: Sequence[str]
) -> tuple[list[Candidate], list[Skipped]]:
    """All that can be measured, devices in their order. Without names: all ready devices but emulated ones."""
    known = {device.id: device for device in manager.known_devices()}
    named = [manager.device(id_) for id_ in devices]
    wanted = named or sorted((d for d in known.values() if d.state == "ready" and d.kind != "emulated"), key=in_order)
    found, skipped = list[Candidate](), list[Skipped]()
    for device in wanted:
        for entry in entries:
            if refusal := refusal_of(device, entry.id):
                skipped.append(Skipped(device.id, None, entry.id, refusal.detail))
                continue
            if entry.song:
                why = "What a song takes depends on its length and steps, so there is no one figure for its model."
                skipped.append(Skipped(device.id, None, entry.id, why))
                continue
            here = [name for name in entry.engines if name in device.engines and (not engines or name in engines)]
            found += [Candidate(device, _runtime(device, name), name, entry) for name in here]
            if not here:
                offers, runs = (", ".join(names) or "no engine" for names in (device.engines, entry.engines))
                asked = f", and {', '.join(engines)} was asked for" if engines else ""
                why = f"The device offers {offers}, the model runs with {runs}{asked}."
                skipped.append(Skipped(device.id, None, entry.id, why))
    return found, skipped


def nothing(skipped: Sequence[Skipped]) -> TouchstoneError:
    """The refusal where nothing is left to measure."""
    reasons = " ".join(dict.fromkeys(one.reason for one in skipped)) or "No device is ready."
    return DeviceNotReady(f"Nothing can be measured. {reasons}", "Choose another device, model or engine.")


def _runtime(device: Device, engine: str) -> str:
    return next(name for name, offered in device.served_by.items() if engine in offered)
