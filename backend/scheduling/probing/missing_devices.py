"""Why a device is missing: what the bus, the driver and each runtime report of a card, and the first thing to do.

It answers for cards without a ready device, for a card by name, and for a machine without any card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backend.common.commands import command
from backend.common.hardware.host import Host
from backend.common.hardware.system_kind import System
from backend.common.hardware.wsl import NODE
from backend.common.hardware.wsl_host_gpus import UPDATE_WINDOWS
from backend.common.known_errors.place import this_system
from backend.common.types import Device, Hardware, MissingDevice
from backend.scheduling.probing.device_table import RuntimeProblem

_CARDS = ("gpu", "integrated", "npu")
_ANY = "Graphics card"
_MAKERS = {
    "NVIDIA": r"nvidia|geforce|rtx|gtx|quadro|tesla",
    "AMD": r"\bamd\b|radeon|instinct",
    "Intel": r"intel|\barc\b",
}
_STATES = ("broken", "quarantined", "unavailable", "probing", "installable")  # the most informative first
_REFRESH = f"Then refresh (`{command('devices')}`, or the page's button)."
_SHOW = f"Unset the variable where the server is started. {_REFRESH}"
# The first thing to do for a card that the system does not show.
_NOT_THERE: dict[System, str] = {
    "container": "Pass the card into the container: `--gpus all` for NVIDIA (requires NVIDIA's container toolkit), "
    "`--device /dev/dri` for others, and `--device /dev/kfd` too for AMD. " + _REFRESH,
    "wsl": UPDATE_WINDOWS + " " + _REFRESH,
    "win32": "Open the Device Manager: a card without a driver is under `Other devices`, a disabled one has an arrow. "
    "Install the driver of its maker and restart; check the card's seat and power if it is not listed. " + _REFRESH,
    "darwin": "Macs with Apple silicon have one built-in GPU, which an arm64 Python with torch uses; external cards do "
    "not compute there. " + _REFRESH,
    "linux": "Check that the card is seated, powered and enabled in the firmware: `lspci -nn | grep -Ei "
    "'vga|3d|display'` must list it. In a virtual machine pass it through. " + _REFRESH,
}


@dataclass(frozen=True)
class Surroundings:
    """The system, and whether WSL's device node exists."""

    system: System
    has_dxg: bool = False


def surroundings() -> Surroundings:
    """Return the surroundings of this machine."""
    system = this_system()
    return Surroundings(system, system == "wsl" and Host().path(NODE).exists())


def missing_devices(
    hardware: Iterable[Hardware], devices: Sequence[Device], wanted: str | None = None, here: Surroundings | None = None
) -> list[MissingDevice]:
    """Return an answer for each card without a ready device, one if there is no card; none for a card being probed.

    `wanted`: optional, a name or id: answers for the cards that match it, or one for a card that is not there.
    `here`: optional. Default: this machine.
    """
    here = here or surroundings()
    cards = [item for item in hardware if item.kind in _CARDS]
    if wanted:
        named = [card for card in cards if _matches(card, wanted)]
        return [_of_card(card, devices, here) for card in named] or [_of_nothing(wanted, cards, here)]
    if not cards:
        return [_of_nothing(_ANY, cards, here)]
    settled = {device.hardware_id for device in devices if device.state in ("ready", "probing")}
    return [_of_card(card, devices, here) for card in cards if card.id not in settled]


def no_ready_device(
    devices: Sequence[Device], runtimes: Mapping[str, RuntimeProblem] | None = None
) -> tuple[str, str | None]:
    """Return the detail for no ready device, and the first thing to do: for the CPU, else a runtime, else a device.

    `runtimes`: optional, the runtimes that report no devices. Optional: the remedy is None if none is known.
    """
    processors = [_told(one) for one in devices if one.kind == "cpu"]
    failed = [(f"The runtime {name}: {one.detail}", one.remedy) for name, one in (runtimes or {}).items()]
    cards = [_told(one) for one in devices if one.kind != "cpu"]
    nothing = "No device is ready, so no job can run."
    for words, remedy in (*processors, *failed, *cards):
        if remedy:
            return f"{nothing} {words}", remedy
    return nothing, None


def _told(device: Device) -> tuple[str, str | None]:
    return f"{device.id} is {device.state}{_because(device)}.", device.remedy


def _matches(card: Hardware, wanted: str) -> bool:
    words = wanted.lower().split()
    text = f"{card.id} {card.name} {card.vendor or ''} {card.architecture or ''}".lower()
    return all(word in text for word in words)


def _of_card(card: Hardware, devices: Sequence[Device], here: Surroundings) -> MissingDevice:
    own = sorted(
        (device for device in devices if device.hardware_id == card.id),
        key=lambda device: _STATES.index(device.state) if device.state in _STATES else -1,
    )
    ready = [device.id for device in own if device.state == "ready"]
    if ready:
        remedy = f"Nothing: {' and '.join(ready)} {'are' if len(ready) > 1 else 'is'} ready."
    elif card.reason and card.remedy:
        remedy = card.remedy
    elif card.hidden_by:
        remedy = f"{' '.join(card.hidden_by)} {_SHOW}"
    else:
        remedy = next((device.remedy for device in own if device.remedy), None) or (
            f"Install a runtime for it: `{command('runtimes')}` lists them."
        )
    return MissingDevice(card.name, card.id, _bus(card, here), _driver(card), _runtimes(own), remedy)


def _bus(card: Hardware, here: Surroundings) -> str:
    ids = f" ({card.pci_ids})" if card.pci_ids else ""
    if here.system == "wsl":
        return f"Windows lists {card.name}{ids}; /dev/dxg {'exists' if here.has_dxg else 'is missing'}."
    if here.system == "win32":
        return f"Windows (DXGI) lists {card.name}{ids}."
    if card.id.startswith("pci:"):
        return f"The PCI bus shows {card.name} at {card.id.removeprefix('pci:')}{ids}."
    return f"The system reports {card.name} ({card.id})."


def _driver(card: Hardware) -> str:
    if card.reason:
        return f"{f'The driver is {card.driver}. ' if card.driver else ''}{card.reason}"
    if card.driver:
        return f"The driver {card.driver} reports no problem."
    return "The system does not name a driver."


def _runtimes(own: Sequence[Device]) -> str:
    """Return what each runtime reported of a card, one clause for each device."""
    if not own:
        return "No installed runtime lists it."
    return " ".join(f"{device.id}{_through(device)} is {device.state}{_because(device)}." for device in own)


def _through(device: Device) -> str:
    return f" ({', '.join(device.runtimes)})" if device.runtimes else ""


def _because(device: Device) -> str:
    reason = (device.reason or "").rstrip(".")
    return f": {reason}" if reason else ""


def _of_nothing(wanted: str, cards: Sequence[Hardware], here: Surroundings) -> MissingDevice:
    """Return the answer for a card that the system does not show."""
    shown = ", ".join(card.name for card in cards) or "no graphics card and no NPU"
    if here.system == "wsl":
        bus = f"/dev/dxg {'exists' if here.has_dxg else 'is missing'}, and Windows lists {shown}."
    elif here.system == "win32":
        bus = f"Windows (DXGI) lists {shown}."
    else:
        where = {"container": "This container", "darwin": "macOS"}.get(here.system, "The PCI bus")
        bus = f"{where} shows {shown}."
    maker = next((name for name, words in _MAKERS.items() if re.search(words, wanted, re.IGNORECASE)), None)
    of = f"{maker}'s driver was not" if maker else "No driver was"
    driver = f"{of} queried, since no such card was found."
    runtimes = "No runtime can list a card that the system does not show."
    return MissingDevice(wanted, None, bus, driver, runtimes, _NOT_THERE[here.system])
