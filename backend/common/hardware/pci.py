"""The PCI bus on Linux: display controllers and accelerators, with driver, nodes and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.common.hardware.chips import AMD, AMD_CPU, is_npu
from backend.common.hardware.host import Host, link_name, names_in, number, text_of

DEVICES = "sys/bus/pci/devices"
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_DISPLAY, _ACCELERATOR, _SIGNAL_PROCESSOR = 0x03, 0x12, 0x1180
_RENDER, _ACCEL = re.compile(r"renderD\d+"), re.compile(r"accel\d+")


@dataclass(frozen=True)
class Card:
    """One display controller or accelerator on the bus."""

    address: str  # "0000:03:00.0"
    bus: int
    device_class: int  # 0x030000 is a VGA controller
    vendor: str  # "1002"
    device: str
    revision: str | None
    driver: str | None
    render_node: str | None  # "renderD128"
    accel_node: str | None  # "accel0"
    memory_bytes: int | None  # on the card, reported by its driver
    memory_shared_bytes: int | None  # host memory that it may use
    beside_cpu_parts: bool  # other functions in its slot belong to an AMD processor
    virtual_of: str | None  # address of the card whose virtual function this is

    @property
    def slot(self) -> str:
        """The address without the function."""
        return self.address.rpartition(".")[0]

    @property
    def first(self) -> bool:
        """Whether this is the first function of its slot."""
        return self.address.endswith(".0")

    @property
    def is_npu(self) -> bool:
        """Whether it is a neural processor and not a GPU."""
        return is_npu(self.vendor, self.device, self.device_class)


def cards(host: Host) -> list[Card]:
    """Return all cards by address, without those that cannot be read.

    A second function for the second display of an old card, which no driver uses, is not a separate card.
    """
    functions = list(_cards(host.path(DEVICES)))
    driven = {card.slot for card in functions if card.driver}
    return [card for card in functions if card.driver or card.virtual_of or card.first or card.slot not in driven]


def on_pci(path: Path) -> bool:
    """Return whether a device's folder is below a PCI device's folder."""
    return any(_ADDRESS.fullmatch(part) for part in path.resolve().parts)


def _cards(folder: Path) -> Iterator[Card]:
    addresses = [name for name in names_in(folder) if _ADDRESS.fullmatch(name)]
    neighbours: dict[str, list[str]] = {}
    for address in addresses:
        neighbours.setdefault(address.rpartition(".")[0], []).append(address)
    for address in addresses:
        path = folder / address
        device_class = _hex(path / "class")
        if device_class is None or not (vendor := _id(path / "vendor")) or not (device := _id(path / "device")):
            continue
        is_relevant = device_class >> 16 in (_DISPLAY, _ACCELERATOR)
        if not is_relevant and not (device_class >> 8 == _SIGNAL_PROCESSOR and is_npu(vendor, device, device_class)):
            continue
        yield Card(
            address=address,
            bus=int(address.split(":")[1], 16),
            device_class=device_class,
            vendor=vendor,
            device=device,
            revision=_id(path / "revision", 2),
            driver=link_name(path / "driver"),
            render_node=_node(path / "drm", _RENDER),
            accel_node=_node(path / "accel", _ACCEL),
            memory_bytes=_own_memory(path),
            memory_shared_bytes=number(text_of(path / "mem_info_gtt_total")),
            beside_cpu_parts=vendor == AMD
            and any(_id(folder / other / "vendor") == AMD_CPU for other in neighbours[address.rpartition(".")[0]]),
            virtual_of=link_name(path / "physfn"),
        )


def _own_memory(path: Path) -> int | None:
    """Return the card's memory: amdgpu reports it per card, xe per tile, i915 per DRM node."""
    if size := number(text_of(path / "mem_info_vram_total")):
        return size
    tiles = [text_of(path / name / "physical_vram_size_bytes") for name in names_in(path) if name.startswith("tile")]
    if size := sum(number(text, 0) or 0 for text in tiles):
        return size
    cards = [name for name in names_in(path / "drm") if name.startswith("card")]
    return next(
        (size for name in cards if (size := number(text_of(path / "drm" / name / "lmem_total_bytes"), 0))), None
    )


def _node(folder: Path, form: re.Pattern[str]) -> str | None:
    return next((name for name in names_in(folder) if form.fullmatch(name)), None)


def _hex(path: Path) -> int | None:
    return number(text_of(path), 16)


def _id(path: Path, digits: int = 4) -> str | None:
    value = _hex(path)
    return None if value is None or value >> 4 * digits else f"{value:0{digits}x}"
