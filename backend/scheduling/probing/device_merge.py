"""Merging: one device from the reports of several runtimes, and the index of a card within a backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from backend.common.device_api import DetectedDevice
from backend.common.hardware.ids import matching, uuid_id
from backend.common.types import Device, DeviceState, Hardware
from backend.devices import INDEX_LIMIT, is_instance

_STATE_ORDER: tuple[DeviceState, ...] = ("ready", "probing", "quarantined", "broken", "unavailable", "installable")


class Numbering:
    """Assigns each card its index within a backend: the rank of its address, independent of a library's order.

    A card that another runtime listed before keeps its index. A card without identity is recognised by its position.
    """

    def __init__(self) -> None:
        self._indexes: dict[str, dict[str, int]] = {}

    def of(self, backend: str, listed: Sequence[DetectedDevice]) -> list[tuple[int, DetectedDevice]]:
        """Return the devices with their indexes. Those beyond the last valid index are left out."""
        indexes = self._indexes.setdefault(backend, {})
        given: dict[int, DetectedDevice] = {}
        for detected in _by_address(listed):
            keys = _keys(detected)
            index = next((indexes[key] for key in keys if key in indexes and indexes[key] not in given), None)
            if index is None and is_instance(detected.identity):
                index = _index_of_whole_card(detected, indexes, given)
            if index is None:  # a new card, or two devices claim to be the same card
                index = next((free for free in range(INDEX_LIMIT * 2) if free not in indexes.values()), None)
            if index is None:
                continue
            indexes.update({key: index for key in keys if key not in indexes})
            indexes.setdefault(f"again:{index}", index)
            given[index] = detected
        return [(index, detected) for index, detected in given.items() if index < INDEX_LIMIT]


def _index_of_whole_card(
    detected: DetectedDevice, indexes: Mapping[str, int], given: Mapping[int, DetectedDevice]
) -> int | None:
    """Return the index that the card of a MIG instance got before it was divided, unless an instance has it."""
    index = indexes.get(f"pci:{detected.identity.get('pci')}")
    others = [key for key, other in indexes.items() if other == index and key.startswith("uuid:MIG-")]
    return None if index in given or others else index


def _by_address(listed: Sequence[DetectedDevice]) -> list[DetectedDevice]:
    """Return the devices in the order of their addresses; those without one last.

    Where the library lists the others by address, a device without one keeps its place among them.
    """
    addresses = [detected.identity["pci"] for detected in listed if "pci" in detected.identity]
    if addresses and addresses == sorted(addresses):
        return sorted(listed, key=lambda detected: detected.position)
    return sorted(listed, key=lambda detected: (detected.identity.get("pci", "~"), detected.position))


def _keys(detected: DetectedDevice) -> list[str]:
    """Return what recognises a device in another list. MIG instances of one card share its address."""
    own = [kind for kind in detected.identity if kind != "listed"]
    kinds = ["uuid"] if is_instance(detected.identity) else own
    return [f"{kind}:{detected.identity[kind]}" for kind in kinds] or [f"place:{detected.position}"]


def merged(devices: Iterable[Device]) -> Device:
    """Return one device from the reports of the runtimes: the best state, and the offers of all ready ones."""
    ordered = sorted(devices, key=lambda device: _STATE_ORDER.index(device.state))
    first = ordered[0]
    ready = [device for device in ordered if device.state == "ready"]
    if len(ready) < 2:
        return first
    offered = _unique(device.engines for device in ready)
    return replace(
        first,
        runtimes=_unique(device.runtimes for device in ready),
        engines=offered,
        tasks=sorted(_unique(device.tasks for device in ready)),
        served_by={name: engines for device in ready for name, engines in device.served_by.items()},
        lacks={name: why for device in ready for name, why in device.lacks.items() if name not in offered},
        versions={name: version for device in reversed(ready) for name, version in device.versions.items()},
    )


def on_hardware(detected: DetectedDevice, hardware: Iterable[Hardware]) -> str | None:
    """Return the id of the Hardware behind a device by address, UUID or LUID, else the id that the library reports."""
    items = list(hardware)
    if is_instance(detected.identity) or detected.kind == "emulated":
        return detected.hardware_id
    for kind, value in detected.identity.items():
        id_ = uuid_id(value) if kind == "uuid" else f"{kind}:{value}"
        found = [item for item in items if matching([item], id_)]
        if len(found) == 1:  # of two cards with one UUID it is unknown which
            return found[0].id
    return detected.hardware_id


def _unique(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))
