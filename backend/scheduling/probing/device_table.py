"""What is known of devices and hardware: each runtime's word on a device, merged, and what no runtime reaches yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backend.common.device_api import DetectedDevice
from backend.common.types import Device, Hardware
from backend.devices import backends, device_id
from backend.scheduling.probing.classification import unproved
from backend.scheduling.probing.device_merge import Numbering, merged, on_hardware
from backend.scheduling.probing.installable import as_found, fitting, installable, offer_for

_OFFERS = ""  # the name under which no runtime speaks: what could be installed


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a runtime as a whole."""

    detail: str
    remedy: str


class DeviceTable:
    """The table of devices. `on_change` hears of each that is not what it was."""

    def __init__(self, on_change: Callable[[Device], None], wanted: Callable[[str], bool]) -> None:
        self._on_change = on_change
        self._wanted = wanted
        self._numbering = Numbering()
        self._said: dict[str, dict[str, Device]] = {}  # by device id, then by the runtime that says so
        self.devices: dict[str, Device] = {}
        self.found: dict[tuple[str, str], DetectedDevice] = {}  # by device id and runtime
        self.surveyed: dict[str, Hardware] = {}
        self.troubles: dict[str, Trouble] = {}  # by runtime

    @property
    def hardware(self) -> dict[str, Hardware]:
        """All hardware by id, with the devices that reach it."""
        known = dict(self.surveyed)
        for device in self.devices.values():
            if (id_ := device.hardware_id) and id_ not in known:
                known[id_] = Hardware(id_, device.name, None, device.kind, device.memory_bytes)
        return {
            id_: replace(item, devices=[device.id for device in self.devices.values() if device.hardware_id == id_])
            for id_, item in known.items()
        }

    def numbered(
        self, backend: str, runtime: str, listed: Sequence[DetectedDevice]
    ) -> list[tuple[str, DetectedDevice]]:
        """The ids of devices that a runtime lists, those that the settings want. What it lists no more is gone."""
        facts = backends()[backend]
        given = [(device_id(facts, index), found) for index, found in self._numbering.of(backend, listed)]
        for id_, words in list(self._said.items()):
            if runtime in words and words[runtime].backend == backend and id_ not in {known for known, _ in given}:
                self._gone(runtime, id_)
        kept = [(id_, found) for id_, found in given if self._wanted(id_)]
        self.found.update({(id_, runtime): found for id_, found in kept})
        return kept

    def listed(self, id_: str, runtime: str, found: DetectedDevice) -> Device:
        """A device as it is before its proof, on the hardware that it is."""
        device = unproved(id_, backends()[id_.partition(":")[0]], runtime, found)
        hardware = on_hardware(found, self.surveyed.values())
        card = self.surveyed.get(hardware or "")
        if card is None or device.kind == "cpu":
            return replace(device, hardware_id=hardware)
        name = card.name if found.name == found.provider else device.name  # ONNX Runtime has no name for some
        memory = device.memory_bytes or (None if device.kind == "emulated" else card.memory_bytes)
        return replace(device, name=name, hardware_id=hardware, memory_bytes=memory)

    def by(self, runtime: str, id_: str) -> Device | None:
        """What a runtime last said of a device."""
        return self._said.get(id_, {}).get(runtime)

    def ids(self, runtime: str, backend: str) -> list[str]:
        """The devices of a backend of which a runtime has said anything, the first one at least."""
        facts = backends()[backend]
        spoken = [id_ for id_, words in self._said.items() if runtime in words and words[runtime].backend == backend]
        return spoken or [device_id(facts, 0)]

    def set_device(self, runtime: str, device: Device) -> None:
        """A runtime's word on a device."""
        words = self._said.setdefault(device.id, {})
        words[runtime] = device
        if runtime != _OFFERS:
            words.pop(_OFFERS, None)
        self._set(merged(words.values()))

    def forget(self, runtime: str) -> None:
        """Takes back all that a runtime said: it is here no more."""
        self.troubles.pop(runtime, None)
        for id_, words in list(self._said.items()):
            if words.pop(runtime, None) is None:
                continue
            self.found.pop((id_, runtime), None)
            if words:
                self._set(merged(words.values()))
                continue
            del self._said[id_]
            reason = f"The runtime {runtime}, which reached it, is here no more."
            remedy = f"Install it again: `runtimes install {runtime}`."
            device = replace(self.devices.pop(id_), state="unavailable", stage="none", reason=reason, remedy=remedy)
            self._on_change(replace(device, proof=None, served_by={}, lacks={}))
        self.offer()

    def offer(self) -> None:
        """Adds what could be installed for hardware that nothing reaches by a backend, and takes back what is gone."""
        for id_, words in list(self._said.items()):
            if _OFFERS in words and words[_OFFERS].hardware_id not in self.surveyed:
                del self._said[id_]
                reason, remedy = "The hardware that it was offered for is here no more.", "Plug it in and refresh."
                self._on_change(replace(self.devices.pop(id_), state="unavailable", reason=reason, remedy=remedy))
        for backend in backends().values():
            cards = sorted(fitting(backend, self.surveyed.values()), key=lambda item: item.id)
            numbers = self._numbering.of(backend.name, [as_found(item) for item in cards])
            for index, found in numbers:
                item = next(card for card in cards if card.id == found.hardware_id)
                id_, offer = device_id(backend, index), offer_for(backend, item)
                reached = {device.hardware_id for device in self.devices.values() if device.backend == backend.name}
                if offer and self._wanted(id_) and item.id not in reached and not self._spoken_for(id_):
                    self.set_device(_OFFERS, installable(id_, backend, item, offer))

    def compare(self) -> None:
        """Says of a device that works how it stands beside the processor."""
        processor = next((d.proof.gflops for d in self.devices.values() if d.kind == "cpu" and d.proof), None)
        for words in self._said.values():
            for runtime, device in words.items():
                words[runtime] = _beside(device, processor)
            self._set(merged(words.values()))

    def _set(self, device: Device) -> None:
        if self.devices.get(device.id) != device:
            self.devices[device.id] = device
            self._on_change(device)

    def _spoken_for(self, id_: str) -> bool:
        return any(runtime != _OFFERS for runtime in self._said.get(id_, {}))

    def _gone(self, runtime: str, id_: str) -> None:
        device = self._said[id_][runtime]
        reason = f"It was here, and the runtime {runtime} lists it no more."
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


def _beside(device: Device, processor: float | None) -> Device:
    """The device with what its measured rate means."""
    rate = device.proof.gflops if device.proof else None
    if device.state != "ready" or device.kind == "cpu" or rate is None or processor is None or rate >= processor:
        return device if device.note is None else replace(device, note=None)
    says = f"a float32 matrix product runs at {rate:.3g} GFLOP/s there and at {processor:.3g} on the processor"
    return replace(device, note=f"It is slower than the processor: {says}.")
