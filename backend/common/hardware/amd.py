"""AMD's compute driver (kfd): the compiler target of each card, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.common.hardware.host import Host, names_in, number, text_of
from backend.common.hardware.ids import pci_id

NODES = "sys/class/kfd/kfd/topology/nodes"
_FRAME_BUFFERS = ("1", "2")  # heap types on the card: visible to the host, or private


@dataclass(frozen=True)
class Node:
    """One GPU of the compute driver."""

    id: str  # "pci:0000:03:00.0"
    number: int
    target: str | None  # "gfx1100"
    memory_bytes: int | None
    uuid: str | None  # in ROCm's form: "GPU-" and sixteen digits


def nodes(host: Host) -> dict[str, Node]:
    """Return the GPUs by PCI id, without those that a container may not read."""
    folder = host.path(NODES)
    gpus = [_node(folder / name) for name in sorted(names_in(folder), key=lambda name: number(name) or 0)]
    return {node.id: node for node in gpus if node}


def _node(path: Path) -> Node | None:
    facts = _properties(path / "properties")
    if not facts.get("simd_count") or "location_id" not in facts:
        return None
    location = facts["location_id"]  # bus, device and function in 8, 5 and 3 bits
    unique = facts.get("unique_id")
    return Node(
        id=pci_id(facts.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7),
        number=number(path.name) or 0,
        target=_target(facts.get("gfx_target_version", 0)),
        memory_bytes=_memory(path / "mem_banks"),
        uuid=f"GPU-{unique:016x}" if unique else None,
    )


def _target(version: int) -> str | None:
    """Return `gfx90a` for 90010: two decimal digits each for the second and third number, written in hexadecimal."""
    if version < 10000:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _memory(banks: Path) -> int | None:
    total = 0
    for name in names_in(banks):
        facts = _properties(banks / name / "properties")
        if str(facts.get("heap_type")) in _FRAME_BUFFERS:
            total += facts.get("size_in_bytes", 0)
    return total or None


def _properties(path: Path) -> dict[str, int]:
    rows = (line.split() for line in text_of(path).splitlines())
    pairs = ((row[0], number(row[1])) for row in rows if len(row) == 2)
    return {key: value for key, value in pairs if value is not None}
