"""The cards of a Linux machine, from the PCI bus, the drivers and the device nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backend.common.hardware import amd, nvidia
from backend.common.hardware.access_problems import obstacle
from backend.common.hardware.chip_names import product_name, vendor_name
from backend.common.hardware.chips import NVIDIA, amd_target, cannot_compute, emulated_by, kind_of
from backend.common.hardware.host import Host
from backend.common.hardware.ids import pci_id_of
from backend.common.hardware.pci import Card, cards
from backend.common.types import DeviceKind, Hardware


def cards_of(host: Host, driver: nvidia.Driver) -> list[Hardware]:
    """Return all display controllers and accelerators on the PCI bus, with the facts of NVIDIA's driver.

    Cards that only the driver lists are included: a container may have no view of the bus.
    """
    amd_nodes = amd.nodes(host)
    items = {}
    for card in cards(host):
        id_ = pci_id_of(card.address)
        if id_:
            item = _hardware(host, id_, card, amd_nodes.get(id_), driver.cards.get(id_) or nvidia.CardFacts())
            items[id_] = _with_driver_failure(item, driver) if card.driver == nvidia.MODULE else item
    hidden = {id_: facts for id_, facts in driver.cards.items() if id_ not in items}
    return [*items.values(), *(_with_driver_failure(card_of(id_, facts), driver) for id_, facts in hidden.items())]


def card_of(id_: str, facts: nvidia.CardFacts) -> Hardware:
    """Return a card that only NVIDIA's driver lists."""
    return Hardware(
        id=id_,
        name=facts.name or "NVIDIA card",
        vendor="NVIDIA",
        kind="gpu",
        memory_bytes=facts.memory_bytes,
        driver=f"{nvidia.MODULE} {facts.driver}" if facts.driver else None,
        architecture=facts.architecture,
        uuid=facts.uuid,
    )


def _hardware(host: Host, id_: str, card: Card, node: amd.Node | None, facts: nvidia.CardFacts) -> Hardware:
    target = node.target if node and node.target else amd_target(card.vendor, card.device)
    kind = _kind(card, target if node else None)
    reason, remedy = obstacle(host, card, facts.minor) or (None, None)
    name = facts.name or product_name(card.vendor, card.device, card.revision)
    return Hardware(
        id=id_,
        name=name or f"{vendor_name(card.vendor) or 'Display adapter'} {card.vendor}:{card.device}",
        vendor=vendor_name(card.vendor),
        kind=kind,
        memory_bytes=facts.memory_bytes or card.memory_bytes or (node.memory_bytes if node and kind == "gpu" else None),
        memory_shared_bytes=card.memory_shared_bytes,
        driver=_driver(host, card, facts),
        reason=reason,
        remedy=remedy,
        pci_ids=f"{card.vendor}:{card.device}",
        architecture=facts.architecture or target,
        uuid=facts.uuid or (node.uuid if node else None),
        render_node=_node(card),
    )


def _with_driver_failure(item: Hardware, driver: nvidia.Driver) -> Hardware:
    """Add the reason to a card for which NVIDIA's tool reported a failure, or which it did not list since it failed."""
    failure = driver.card_failures.get(item.id) or (None if item.memory_bytes else driver.failure)
    if item.reason or failure is None:
        return item
    return replace(item, reason=failure.reason, remedy=failure.remedy)


def _kind(card: Card, target: str | None) -> DeviceKind:
    if emulated_by(card.vendor, card.device) or cannot_compute(card.vendor):
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


def _driver(host: Host, card: Card, facts: nvidia.CardFacts) -> str | None:
    """Return the driver's name and version. A driver in the kernel has the kernel's version."""
    if card.driver is None:
        return None
    own = host.read("sys/module", card.driver.replace("-", "_"), "version")
    version = facts.driver if card.vendor == NVIDIA else None
    version = version or own or host.read("proc/sys/kernel/osrelease")
    return f"{card.driver} {version}".strip()


def _node(card: Card) -> str | None:
    if card.render_node:
        return f"/dev/dri/{card.render_node}"
    return f"/dev/accel/{card.accel_node}" if card.accel_node else None


def by_address(hardware: Iterable[Hardware]) -> list[Hardware]:
    """Return the hardware sorted by id, the processor first."""
    return sorted(hardware, key=lambda item: (item.kind != "cpu", item.id))
