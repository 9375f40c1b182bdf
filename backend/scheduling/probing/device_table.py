"""The device table: the reports of all runtimes on each device, merged, and hardware that no runtime reaches yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backend.common.commands import command
from backend.common.device_api import DetectedDevice
from backend.common.types import Device, Hardware
from backend.devices import backends, device_id, is_instance
from backend.engines import engines
from backend.scheduling.probing.classification import unproved
from backend.scheduling.probing.device_merge import Numbering, merged, on_hardware
from backend.scheduling.probing.installable import as_found, fitting, installable, offers_for

log = logging.getLogger(__name__)
_FULL_SHARE = 0.01  # a card with less free memory cannot load a model
_INSTALL_OFFERS = ""  # in place of a runtime's name: what could be installed


@dataclass(frozen=True)
class RuntimeProblem:
    """A problem of a runtime as such."""

    detail: str
    remedy: str


class DeviceTable:
    """The table of devices. `on_change` is a callback for each device that changes."""

    def __init__(self, on_change: Callable[[Device], None], is_enabled: Callable[[str], bool]) -> None:
        """`is_enabled` returns whether the settings allow a device."""
        self._on_change = on_change
        self._is_enabled = is_enabled
        self._numbering = Numbering()
        self._reports: dict[str, dict[str, Device]] = {}  # by device id, then by runtime
        self.devices: dict[str, Device] = {}
        self.detected: dict[tuple[str, str], DetectedDevice] = {}  # by device id and runtime
        self.surveyed: dict[str, Hardware] = {}
        self.runtime_problems: dict[str, RuntimeProblem] = {}  # by runtime

    @property
    def hardware(self) -> dict[str, Hardware]:
        """All hardware by id, with the devices that reach it."""
        hardware = dict(self.surveyed)
        for device in self.devices.values():
            if (id_ := device.hardware_id) and id_ not in hardware:
                hardware[id_] = Hardware(id_, device.name, None, device.kind, device.memory_bytes)
        return {
            id_: replace(item, devices=[id for id, device in self.devices.items() if id_ in self._cards_of(device)])
            for id_, item in hardware.items()
        }

    def numbered(
        self, backend: str, runtime: str, listed: Sequence[DetectedDevice]
    ) -> list[tuple[str, DetectedDevice]]:
        """Return the enabled devices that a runtime lists, with ids. Those that it no longer lists are marked gone."""
        facts = backends()[backend]
        numbered = [(device_id(facts, index), detected) for index, detected in self._numbering.of(backend, listed)]
        listed_ids = {id_ for id_, _ in numbered}
        for id_, reports in list(self._reports.items()):
            if runtime in reports and reports[runtime].backend == backend and id_ not in listed_ids:
                self._mark_gone(runtime, id_)
        enabled = [(id_, detected) for id_, detected in numbered if self._is_enabled(id_)]
        self.detected.update({(id_, runtime): detected for id_, detected in enabled})
        return enabled

    def listed(self, id_: str, runtime: str, detected: DetectedDevice) -> Device:
        """Return a listed device before its proof, matched to its hardware."""
        device = unproved(id_, backends()[id_.partition(":")[0]], runtime, detected)
        hardware = on_hardware(detected, self.surveyed.values())
        card = self.surveyed.get(hardware or "")
        if card is None or device.kind == "cpu":
            return replace(device, hardware_id=hardware)
        name = (
            card.name if detected.name == detected.provider else device.name
        )  # ONNX Runtime has no names for some devices
        memory = device.memory_bytes or (None if device.kind == "emulated" else card.memory_bytes)
        return replace(device, name=name, hardware_id=hardware, memory_bytes=memory)

    def report(self, runtime: str, id_: str) -> Device | None:
        """Return the last report of a runtime on a device, or None."""
        return self._reports.get(id_, {}).get(runtime)

    def ids(self, runtime: str, backend: str) -> list[str]:
        """Return the ids of a backend's devices with a report of the runtime; the first id if there is none."""
        facts = backends()[backend]
        reported = [
            id_ for id_, reports in self._reports.items() if runtime in reports and reports[runtime].backend == backend
        ]
        return reported or [device_id(facts, 0)]

    def set_device(self, runtime: str, device: Device) -> None:
        """Set the report of a runtime on a device."""
        reports = self._reports.setdefault(device.id, {})
        reports[runtime] = device
        if runtime != _INSTALL_OFFERS:
            reports.pop(_INSTALL_OFFERS, None)
        self._set(merged(reports.values()))

    def forget(self, runtime: str) -> None:
        """Remove all reports of a runtime that was removed."""
        self.runtime_problems.pop(runtime, None)
        for id_, reports in list(self._reports.items()):
            if reports.pop(runtime, None) is None:
                continue
            self.detected.pop((id_, runtime), None)
            if reports:
                self._set(merged(reports.values()))
                continue
            del self._reports[id_]
            reason = f"The runtime {runtime}, which reached it, was removed."
            remedy = f"Install it again: `{command(f'runtimes install {runtime}')}`."
            device = replace(self.devices.pop(id_), state="unavailable", stage="none", reason=reason, remedy=remedy)
            self._on_change(replace(device, proof=None, served_by={}, lacks={}))
        self.offer()

    def offer(self) -> None:
        """Add installable devices for hardware that no runtime reaches; remove those of removed hardware."""
        for id_, reports in list(self._reports.items()):
            if _INSTALL_OFFERS in reports and reports[_INSTALL_OFFERS].hardware_id not in self.surveyed:
                del self._reports[id_]
                reason, remedy = "Its hardware was removed.", "Plug it in and refresh."
                self._on_change(replace(self.devices.pop(id_), state="unavailable", reason=reason, remedy=remedy))
        for backend in backends().values():
            cards = sorted(fitting(backend, self.surveyed.values()), key=lambda item: item.id)
            numbers = self._numbering.of(backend.name, [as_found(item) for item in cards])
            for index, detected in numbers:
                item = next(card for card in cards if card.id == detected.hardware_id)
                id_, offers = device_id(backend, index), offers_for(backend, item)
                reached = self._reached_cards(backend.name)
                if offers and self._is_enabled(id_) and item.id not in reached and not self._has_report(id_):
                    self.set_device(_INSTALL_OFFERS, installable(id_, backend, item, offers[0]))

    def compare(self) -> None:
        """Note on each working device whether it is slower than the CPU."""
        cpu_gflops = next((d.proof.gflops for d in self.devices.values() if d.kind == "cpu" and d.proof), None)
        for reports in self._reports.values():
            for runtime, device in reports.items():
                reports[runtime] = _with_note(device, cpu_gflops)
            self._set(merged(reports.values()))

    def _reached_cards(self, backend: str) -> set[str]:
        return {
            card for device in self.devices.values() if device.backend == backend for card in self._cards_of(device)
        }

    def _cards_of(self, device: Device) -> set[str]:
        """Return the id of a device's hardware, and for a MIG instance that of its card too."""
        identities = [detected.identity for (id_, _), detected in self.detected.items() if id_ == device.id]
        parents = {f"pci:{each['pci']}" for each in identities if is_instance(each) and "pci" in each}
        return parents | ({device.hardware_id} if device.hardware_id else set())

    def _set(self, device: Device) -> None:
        if self.devices.get(device.id) != device:
            self.devices[device.id] = device
            try:
                self._on_change(device)
            except Exception:  # a listener must not lose the device
                log.exception("publishing a device failed", extra={"device": device.id})

    def _has_report(self, id_: str) -> bool:
        return any(runtime != _INSTALL_OFFERS for runtime in self._reports.get(id_, {}))

    def _mark_gone(self, runtime: str, id_: str) -> None:
        device = self._reports[id_][runtime]
        reason = f"The runtime {runtime} listed it before and no longer does."
        remedy = "Check that the card is plugged in and its driver runs, then refresh."
        self.set_device(
            runtime,
            replace(
                device,
                state="unavailable",
                stage="installed",
                reason=reason,
                remedy=remedy,
                layer="hardware",
                proof=None,
            ),
        )


def _with_note(device: Device, cpu_gflops: float | None) -> Device:
    """Return the device with a note if its memory is full, a data type is unusable, or it is slower than the CPU."""
    notes = [note for note in (_memory_note(device), _type_note(device), _speed_note(device, cpu_gflops)) if note]
    note = " ".join(notes) or None
    return device if device.note == note else replace(device, note=note)


def _type_note(device: Device) -> str | None:
    """Name the engines that a working device does not offer because a data type is unusable on it."""
    if device.state != "ready" or not device.proof:
        return None
    refused: dict[str, list[str]] = {}
    for name in device.lacks:
        if dtype := engines()[name].unusable_type(device.backend, device.proof):
            refused.setdefault(dtype, []).append(name)
    notes = [f"{device.proof.unusable[dtype]}: {', '.join(names)} not offered." for dtype, names in refused.items()]
    return " ".join(notes) or None


def _memory_note(device: Device) -> str | None:
    free, total = device.memory_free_bytes, device.memory_bytes
    if device.state != "ready" or device.kind == "cpu" or free is None or free > (total or 0) * _FULL_SHARE:
        return None
    of_total = f" of {total / 1e9:.3g} GB" if total else ""
    return f"Its memory is full: {free / 1e6:.3g} MB{of_total} free. Close the programs that use it."


def _speed_note(device: Device, cpu_gflops: float | None) -> str | None:
    gflops = device.proof.gflops if device.proof else None
    if device.state != "ready" or device.kind == "cpu" or gflops is None or cpu_gflops is None or gflops >= cpu_gflops:
        return None
    rates = f"a float32 matrix product runs at {gflops:.3g} GFLOP/s there and at {cpu_gflops:.3g} on the processor"
    return f"It is slower than the processor: {rates}."
