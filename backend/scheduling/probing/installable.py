"""Installable devices: hardware that no runtime reaches yet, and the runtime that would."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace

from backend.common.device_api import DetectedDevice
from backend.common.types import Device, Hardware
from backend.devices import Backend, InstallOffer
from backend.runtimes.recipes import how_to, recipes
from backend.scheduling.probing.classification import unproved

_COMPUTES = ("gpu", "integrated", "npu")


def fitting(backend: Backend, hardware: Iterable[Hardware]) -> list[Hardware]:
    """Return the hardware of this machine that the backend can drive."""
    kinds = ("npu",) if backend.kind == "npu" else _COMPUTES
    return [
        item
        for item in hardware
        if item.kind in kinds
        and sys.platform in backend.systems
        and (not backend.vendors or (item.vendor or "").upper() in {vendor.upper() for vendor in backend.vendors})
    ]


def offers_for(backend: Backend, item: Hardware) -> list[InstallOffer]:
    """Return the offers of runtimes that would make the hardware usable, the preferred one first."""
    return [offer for offer in backend.offers if item in fitting(backend, [item]) and _fits(offer, item)]


def installable(id_: str, backend: Backend, item: Hardware, offer: InstallOffer) -> Device:
    """Return the device that the runtime would add; `unavailable` if the hardware itself has a problem."""
    device = replace(unproved(id_, backend, offer.runtime, as_found(item)), stage="none", hardware_id=item.id)
    remedy = how_to(recipes()[offer.runtime])
    if item.reason:
        return replace(
            device,
            state="unavailable",
            reason=item.reason,
            remedy=item.remedy or remedy,
            layer=_layer_of(item),
            runtimes=[],
        )
    reason = f"{item.name} is here, but no runtime that uses it for {backend.label} is installed."
    return replace(device, state="installable", reason=reason, remedy=remedy, layer="runtime package")


def missing_device_of_card(device: Device, item: Hardware) -> Device:
    """Return a missing device with the card that should have it, and the problem of that card."""
    device = replace(device, hardware_id=item.id)
    if item.reason is None:
        return replace(device, reason=f"{item.name} is here. {device.reason}")
    reason = f"{item.name} is here. {item.reason} {device.reason}"
    return replace(device, reason=reason, remedy=item.remedy or device.remedy, layer=_layer_of(item))


def as_found(item: Hardware) -> DetectedDevice:
    """Return the hardware in the form in which a library lists a device."""
    identity = {"pci": item.id.removeprefix("pci:")} if item.id.startswith("pci:") else {"hardware": item.id}
    return DetectedDevice(item.name, item.kind, item.id, item.memory_bytes, None, identity=identity)


def _layer_of(item: Hardware) -> str:
    return "permission" if "permission" in (item.reason or "").lower() else "driver"


def _fits(offer: InstallOffer, item: Hardware) -> bool:
    chip = item.architecture or ""
    return (
        sys.platform in offer.systems
        and recipes()[offer.runtime].build() is not None
        and item.kind in offer.kinds
        and (not offer.vendors or (item.vendor or "") in offer.vendors)
        and (not offer.architectures or not chip or chip.startswith(offer.architectures))
    )
