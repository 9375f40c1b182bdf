"""Finds what a benchmark can measure: the combinations of device, runtime, engine and model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.common.errors import DeviceNotReady, TouchstoneError
from backend.common.types import Device
from backend.models import Entry
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.device_resolution import in_order
from backend.scheduling.quarantine import Combination
from backend.scheduling.target_selection import unusable_error
from backend.scheduling.worker import WorkerKey

TASKS = ("text", "music")  # the tasks that have benchmark metrics


@dataclass(frozen=True)
class Candidate:
    """A model on a device with an engine of a runtime."""

    device: Device
    runtime: str
    engine: str
    entry: Entry

    @property
    def key(self) -> WorkerKey:
        """The key of the worker that runs it."""
        return WorkerKey(self.device.id, self.runtime, self.engine, self.entry.id)

    @property
    def place(self) -> Combination:
        """What its worker's deaths count against."""
        return Combination(self.device.id, self.engine, self.entry.id)

    @property
    def title(self) -> str:
        """The candidate in words."""
        return f"{self.entry.id} on {self.device.id} with {self.engine}"

    @property
    def subject(self) -> tuple[str, str, str, str]:
        """What identifies its measurements in the history, as `Measurement.subject`."""
        return self.device.id, self.device.name, self.engine, self.entry.id


@dataclass(frozen=True)
class Skipped:
    """A combination that was asked for and cannot be measured. Engine and model are optional: None means all."""

    device: str
    engine: str | None
    model: str | None
    reason: str


def find_candidates(
    directory: DeviceDirectory, entries: Sequence[Entry], devices: Sequence[str], engines: Sequence[str]
) -> tuple[list[Candidate], list[Skipped]]:
    """Return all that can be measured, in the order of the devices, and what is skipped.

    Default: all ready devices except emulated ones, and all engines that fit.
    """
    found, skipped = list[Candidate](), list[Skipped]()
    for device in [directory.device(device_id) for device_id in devices] or _default_devices(directory):
        for entry in entries:
            if refusal := unusable_error(device, entry.id):
                skipped.append(Skipped(device.id, None, entry.id, refusal.detail))
                continue
            if entry.song:
                reason = "The speed of a song depends on its length and steps, so its model has no single figure."
                skipped.append(Skipped(device.id, None, entry.id, reason))
                continue
            usable = [name for name in entry.engines if name in device.engines and (not engines or name in engines)]
            found += [Candidate(device, _runtime_of(device, name), name, entry) for name in usable]
            if not usable:
                skipped.append(Skipped(device.id, None, entry.id, _mismatch(device, entry, engines)))
    return found, skipped


def nothing_to_measure(skipped: Sequence[Skipped]) -> TouchstoneError:
    """Return the error for a benchmark without candidates."""
    reasons = " ".join(dict.fromkeys(skip.reason for skip in skipped)) or "No device is ready."
    return DeviceNotReady(f"No benchmark can run. {reasons}", "Choose another device, model or engine.")


def _default_devices(directory: DeviceDirectory) -> list[Device]:
    devices = directory.known_devices()
    return sorted((d for d in devices if d.state == "ready" and d.kind != "emulated"), key=in_order)


def _mismatch(device: Device, entry: Entry, engines: Sequence[str]) -> str:
    offered, needed = (", ".join(names) or "no engine" for names in (device.engines, entry.engines))
    asked = f", and {', '.join(engines)} was asked for" if engines else ""
    return f"The device offers {offered}, the model runs with {needed}{asked}."


def _runtime_of(device: Device, engine: str) -> str:
    return next(name for name, offered in device.served_by.items() if engine in offered)
