"""The cards of a Linux machine: what the bus, the drivers and the nodes say, put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backend.common.hardware import amd, nvidia
from backend.common.hardware.access_problems import obstacle
from backend.common.hardware.chip_names import product_name, vendor_name
from backend.common.hardware.chips import NVIDIA, amd_target, cannot_compute, kind_of, played_by
from backend.common.hardware.host import Host
from backend.common.hardware.ids import pci_id_of
from backend.common.hardware.pci import Card, cards
from backend.common.types import DeviceKind, Hardware


def cards_of(host: Host, told: nvidia.Driver) -> list[Hardware]:
    """All display controllers and accelerators on the PCI bus, with what NVIDIA's driver told of its own."""
    computing = amd.nodes(host)
    found = []
    for card in cards(host):
        id_ = pci_id_of(card.address)
        if id_:
            item = _hardware(host, id_, card, computing.get(id_), told.cards.get(id_) or nvidia.Told())
            found.append(_silent(item, told.trouble) if card.driver == nvidia.MODULE else item)
    return found


def _hardware(host: Host, id_: str, card: Card, node: amd.Node | None, told: nvidia.Told) -> Hardware:
    target = node.target if node and node.target else amd_target(card.vendor, card.device)
    kind = _kind(card, target if node else None)
    reason, remedy = obstacle(host, card, told.minor) or (None, None)
    name = told.name or product_name(card.vendor, card.device, card.revision)
    return Hardware(
        id=id_,
        name=name or f"{vendor_name(card.vendor) or 'Display adapter'} {card.vendor}:{card.device}",
        vendor=vendor_name(card.vendor),
        kind=kind,
        memory_bytes=told.memory_bytes or card.memory_bytes or (node.memory_bytes if node and kind == "gpu" else None),
        memory_shared_bytes=card.memory_shared_bytes,
        driver=_driver(host, card, told),
        reason=reason,
        remedy=remedy,
        pci_ids=f"{card.vendor}:{card.device}",
        architecture=told.architecture or target,
        uuid=told.uuid or (node.uuid if node else None),
        render_node=_node(card),
    )


def _silent(item: Hardware, trouble: str | None) -> Hardware:
    """A card of which NVIDIA's tool told nothing because it failed."""
    if not trouble or item.reason or item.memory_bytes:
        return item
    remedy = "Restart the machine (after an update of the driver this is needed); look into `dmesg` if it stays."
    return replace(item, reason=f"NVIDIA's driver gives no answer: {trouble}.", remedy=remedy)


def _kind(card: Card, target: str | None) -> DeviceKind:
    if played_by(card.vendor, card.device) or cannot_compute(card.vendor):
        return "emulated"
    if card.is_npu:
        return "npu"
    return kind_of(
        card.vendor,
        card.device,
        bus=card.bus,
        beside_cpu_parts=card.beside_cpu_parts,
        own_memory=bool(card.memory_bytes),
        target=target,
    )


def _driver(host: Host, card: Card, told: nvidia.Told) -> str | None:
    """Name and version. A driver that is part of the kernel has the kernel's version."""
    if card.driver is None:
        return None
    own = host.read("sys/module", card.driver.replace("-", "_"), "version")
    version = told.driver if card.vendor == NVIDIA else None
    version = version or own or host.read("proc/sys/kernel/osrelease")
    return f"{card.driver} {version}".strip()


def _node(card: Card) -> str | None:
    if card.render_node:
        return f"/dev/dri/{card.render_node}"
    return f"/dev/accel/{card.accel_node}" if card.accel_node else None


def by_address(hardware: Iterable[Hardware]) -> list[Hardware]:
    """In the order of their ids, the processor first."""
    return sorted(hardware, key=lambda item: (item.kind != "cpu", item.id))
