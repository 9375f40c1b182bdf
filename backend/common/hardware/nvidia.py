"""Facts about cards from NVIDIA's driver: its files in /proc and its tool nvidia-smi.

nvidia-smi uses NVML, which may hang if a card fell off the bus. As a command it has a timeout and can be killed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from backend.common.hardware.host import COMMAND_LIMIT_S, Host, names_in, number
from backend.common.hardware.ids import pci_id_of

MODULE = "nvidia"
PROC = "proc/driver/nvidia"
QUERY = ("pci.bus_id", "uuid", "name", "memory.total", "driver_version", "compute_cap")
_PLACES = (
    "usr/lib/wsl/lib/nvidia-smi",
    "usr/bin/nvidia-smi",
    "usr/local/bin/nvidia-smi",
    "usr/local/nvidia/bin/nvidia-smi",
    "opt/bin/nvidia-smi",
    "run/current-system/sw/bin/nvidia-smi",
)
_VERSION = re.compile(r"\b(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")


@dataclass(frozen=True)
class CardFacts:
    """The driver's facts about one card."""

    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None  # "580.159.04"
    architecture: str | None = None  # "sm_90"
    minor: int | None = None  # number of its node: 0 for /dev/nvidia0


@dataclass(frozen=True)
class Driver:
    """The driver's cards by PCI id. `error`: optional, why nvidia-smi failed."""

    cards: dict[str, CardFacts]
    version: str | None = None
    error: str | None = None


def driver_version(host: Host) -> str | None:
    """Return the version of the loaded kernel driver, None if it is not loaded."""
    match = _VERSION.search(host.read(PROC, "version").partition("\n")[0])
    return match[1] if match else None


def from_files(host: Host) -> Driver:
    """Return the driver's facts from /proc, which cannot hang."""
    cards = {}
    for address in names_in(host.path(PROC, "gpus")):
        if id_ := pci_id_of(address):
            facts = _facts(host.read(PROC, "gpus", address, "information"))
            uuid = facts.get("GPU UUID")
            cards[id_] = CardFacts(
                name=_branded(facts.get("Model")),
                uuid=uuid if uuid and "?" not in uuid else None,
                minor=number(facts.get("Device Minor", "")),
            )
    return Driver(cards, driver_version(host))


def from_tool(host: Host) -> Driver:
    """Return the facts from nvidia-smi, for cards that this process may use."""
    tool = _tool(host)
    if tool is None:
        return Driver({})
    answer = host.run((tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"), COMMAND_LIMIT_S)
    cards = dict(filter(None, map(_card, answer.text.splitlines())))  # a lost card does not hide the others
    return Driver(cards, next((card.driver for card in cards.values()), None), answer.trouble)


def present(host: Host) -> bool:
    """Return whether the driver may be installed, so that its tools can be used."""
    return host.platform == "win32" or host.path(PROC).exists() or host.path("dev/dxg").exists()


def query_field(host: Host, id_: str, field: str, limit_s: float) -> str | None:
    """Return a field of one card from nvidia-smi, without its unit; None if it is not available."""
    tool = _tool(host)
    if tool is None:
        return None
    answer = host.run((tool, f"--query-gpu=pci.bus_id,{field}", "--format=csv,noheader,nounits"), limit_s)
    for line in answer.text.splitlines():
        address, _, value = line.partition(",")
        if pci_id_of(address.strip()) == id_:
            return _available_value(value)
    return None


def free_bytes(host: Host, id_: str, limit_s: float) -> int | None:
    """Return the free memory of one card from nvidia-smi, None if it is not available."""
    mebibytes = number(query_field(host, id_, "memory.free", limit_s) or "")
    return None if mebibytes is None else mebibytes << 20


def _tool(host: Host) -> str | None:
    if host.platform == "win32":
        windows = host.environment.get("SystemRoot", r"C:\Windows")
        return rf"{windows}\System32\nvidia-smi.exe"
    return next((host.shown(host.path(place)) for place in _PLACES if host.path(place).exists()), None)


def _card(line: str) -> tuple[str, CardFacts] | None:
    values = [_available_value(value) for value in line.split(",")]
    if len(values) != len(QUERY) or not values[0] or not (id_ := pci_id_of(values[0])):
        return None
    _, uuid, name, memory, driver, capability = values
    mebibytes = number(memory or "")
    return id_, CardFacts(
        name=_branded(name),
        uuid=uuid,
        memory_bytes=mebibytes << 20 if mebibytes else None,
        driver=driver,
        architecture="sm_" + capability.replace(".", "") if capability else None,
    )


def _available_value(value: str) -> str | None:
    """Return a value of the table, None for placeholders such as [N/A] or [Unknown Error]."""
    value = value.strip()
    return None if not value or value.startswith("[") or value == "N/A" else value


def _branded(name: str | None) -> str | None:
    if not name or name.lower().startswith("unknown"):
        return None
    return name if name.startswith("NVIDIA") else f"NVIDIA {name}"


def _facts(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
