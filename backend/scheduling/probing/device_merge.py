"""One device from what several runtimes say of it: which index a card has, and which word counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from backend.common.device_api import DetectedDevice
from backend.common.hardware.ids import matching, uuid_id
from backend.common.types import Device, DeviceState, Hardware
from backend.devices import INDEX_LIMIT

_WORTH: tuple[DeviceState, ...] = ("ready", "probing", "quarantined", "broken", "unavailable", "installable")


class Numbering:
    """Gives each card its index within a backend: the rank of its address, whatever a library's own order is.

    A card that another runtime has listed before keeps its index; one without identity is known by its place alone.
    """

    def __init__(self) -> None:
        self._indexes: dict[str, dict[str, int]] = {}

    def of(self, backend: str, listed: Sequence[DetectedDevice]) -> list[tuple[int, DetectedDevice]]:
        """The devices with their indexes. Those beyond the last index that an id can have are left out."""
        known = self._indexes.setdefault(backend, {})
        ranked = sorted(listed, key=lambda found: (found.identity.get("pci", "~"), found.position))
        given: list[tuple[int, DetectedDevice]] = []
        for found in ranked:
            keys = [f"{kind}:{value}" for kind, value in found.identity.items() if kind != "listed"]
            keys = keys or [f"place:{found.position}"]
            index = next((known[key] for key in keys if key in known), None)
            if index is None or index in (taken for taken, _ in given):  # two that claim to be the same card
                index = next(free for free in range(INDEX_LIMIT * 2) if free not in known.values())
                known.update({key: index for key in keys if key not in known} or {f"again:{index}": index})
            if index < INDEX_LIMIT:
                given.append((index, found))
        return given


def merged(devices: Iterable[Device]) -> Device:
    """What counts, of what each runtime says: the best word, and all that the ready ones offer together."""
    ordered = sorted(devices, key=lambda device: _WORTH.index(device.state))
    first = ordered[0]
    ready = [device for device in ordered if device.state == "ready"]
    if len(ready) < 2:
        return first
    offered = _joined(device.engines for device in ready)
    return replace(
        first,
        runtimes=_joined(device.runtimes for device in ready),
        engines=offered,
        tasks=sorted(_joined(device.tasks for device in ready)),
        served_by={name: engines for device in ready for name, engines in device.served_by.items()},
        lacks={name: why for device in ready for name, why in device.lacks.items() if name not in offered},
        versions={name: version for device in reversed(ready) for name, version in device.versions.items()},
    )


def on_hardware(found: DetectedDevice, hardware: Iterable[Hardware]) -> str | None:
    """The id of the Hardware behind a device, by address, UUID or LUID; the library's own word where none is known."""
    known = list(hardware)
    for kind, value in found.identity.items():
        item = matching(known, uuid_id(value) if kind == "uuid" else f"{kind}:{value}")
        if item is not None:
            return item.id
    return found.hardware_id


def _joined(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))
