"""Facts about cards from NVIDIA's driver: its files in /proc and its tool nvidia-smi.

nvidia-smi uses NVML, which may hang if a card fell off the bus. As a command it has a timeout and can be killed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace

from backend.common.hardware.host import COMMAND_LIMIT_S, Host, names_in, number, telling_line
from backend.common.hardware.ids import pci_id_of
from backend.common.hardware.nvidia_errors import ToolError, named_error, tool_error
from backend.common.hardware.system_kind import system_of

MODULE = "nvidia"
PROC = "proc/driver/nvidia"
QUERY = ("pci.bus_id", "uuid", "name", "memory.total", "driver_version", "compute_cap")
# A placeholder that is the card's state, such as [GPU recovery required]. The others mean that a fact is not available.
_STATE = re.compile(r"\[(?!N/A|Not Supported|Insufficient Permissions|No permission)[^\]]+\]", re.IGNORECASE)
_PLACES = (
    "usr/lib/wsl/lib/nvidia-smi",
    "usr/bin/nvidia-smi",
    "usr/local/bin/nvidia-smi",
    "usr/local/nvidia/bin/nvidia-smi",
    "opt/bin/nvidia-smi",
    "run/current-system/sw/bin/nvidia-smi",
)
_VERSION = re.compile(r"\b(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b")
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{4,8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_CAPABILITY = re.compile(r"(\d{1,2})[.,](\d)")  # some languages write a decimal comma
_MEBIBYTES = re.compile(r"(\d+)(?:[.,]\d{1,2})?(?: ?MiB)?")  # three digits would be thousands
_DECIMAL = re.compile(r"(\d+)(?:[.,](\d+))?(?: ?W)?")
_LOST_CARD = re.compile(r"GPU ?(?:\d+: ?)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"\[.*\]|\(.*\)|-*|n/a|err!|none|null|unknown( error)?|not (supported|available|active|found)"
    r"|insufficient permissions|no permission|gpu (requires reset|is lost)|error",
    re.IGNORECASE,
)


_CHECK_DRIVER = "Restart the machine (required after a driver update); if that does not help, check `sudo dmesg`."


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
class Failure:
    """Why the driver or a card does not work, in sentences."""

    reason: str
    remedy: str


@dataclass(frozen=True)
class Driver:
    """The driver's cards by PCI id.

    `failure`: optional, why nvidia-smi failed as a whole. `card_failures`: failures of single cards, by id.
    """

    cards: dict[str, CardFacts]
    version: str | None = None
    failure: Failure | None = None
    card_failures: dict[str, Failure] = field(default_factory=dict)


def driver_version(host: Host) -> str | None:
    """Return the version of the loaded kernel driver, None if it is not loaded."""
    match = _VERSION.search(host.read(PROC, "version").partition("\n")[0])
    return match[1] if match else None


def from_files(host: Host) -> Driver:
    """Return the driver's facts from /proc."""
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
    cards: dict[str, CardFacts] = {}
    failures: dict[str, Failure] = {}
    messages: list[str] = []  # lines that are not rows: errors, banners, MIG instances
    for line in answer.text.splitlines():
        if row := _card(line):  # a lost card does not hide the others
            id_, facts = row
            cards[id_] = _merged(cards[id_], facts) if id_ in cards else facts
            is_silent = replace(facts, driver=None) == CardFacts() and bool(_STATE.search(line))
            error = tool_error(line) or (named_error("gpu-silent") if is_silent else None)
            if facts.memory_bytes is None and error and error.one_card:
                failures[id_] = _failure(host, line, error)
        else:
            messages.append(line)
    for message in (*messages, answer.trouble or ""):
        if (address := _LOST_CARD.search(message)) and (lost := pci_id_of(address[1])) and tool_error(message):
            failures[lost] = _failure(host, message, tool_error(message))
    failure = None if cards or failures else _tool_failure(host, answer.trouble, "\n".join(messages))
    version = next((card.driver for card in cards.values() if card.driver), None)
    return Driver(cards, version, failure, failures)


def _tool_failure(host: Host, trouble: str | None, text: str) -> Failure:
    """Return why the tool listed no card."""
    error, line = tool_error(text), telling_line(text)
    message = trouble if trouble and (tool_error(trouble) or error is None) else line
    if not message:
        return _failure(host, "it printed nothing", named_error("driver-lists-no-card"))
    return _failure(host, message, tool_error(message))


def _failure(host: Host, message: str, error: ToolError | None) -> Failure:
    """Return a failure that the tool reported, with its remedy."""
    message = " ".join(message.split()).rstrip(".")[:300]
    if error is None:
        return Failure(f"NVIDIA's driver does not respond: {message}.", _CHECK_DRIVER)
    remedy = error.known.remedy_on(system_of(host))
    return Failure(f"NVIDIA's tool reports that {error.meaning}: {message}.", remedy)


def _merged(known: CardFacts, more: CardFacts) -> CardFacts:
    """Return the facts of two rows about one card. A fact on which they differ is unknown."""
    pairs = {each.name: (getattr(known, each.name), getattr(more, each.name)) for each in fields(CardFacts)}
    return CardFacts(**{name: a if b in (a, None) else b if a is None else None for name, (a, b) in pairs.items()})


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
    return _bytes(query_field(host, id_, "memory.free", limit_s))


def watts(host: Host, id_: str, limit_s: float) -> float | None:
    """Return the power of one card from nvidia-smi, None if it is not available."""
    match = _DECIMAL.fullmatch(query_field(host, id_, "power.draw", limit_s) or "")
    return float(f"{match[1]}.{match[2] or 0}") if match else None


def _tool(host: Host) -> str | None:
    if host.platform == "win32":
        windows = host.environment.get("SystemRoot", r"C:\Windows")
        return rf"{windows}\System32\nvidia-smi.exe"
    return next((host.shown(host.path(place)) for place in _PLACES if host.path(place).exists()), None)


def _card(line: str) -> tuple[str, CardFacts] | None:
    """Parse a row. A value in an unexpected form is unknown. Returns None for a line that is not a row."""
    values = [value.strip() for value in re.split(r",\s+" if ", " in line else ",", line.strip())]
    if len(values) < len(QUERY) or not (id_ := pci_id_of(values[0])):
        return None
    _, uuid, *name, memory, driver, capability = values  # a name may contain a comma
    sm = _CAPABILITY.fullmatch(capability)
    return id_, CardFacts(
        name=_branded(_available_value(", ".join(name))),
        uuid=uuid if _UUID.fullmatch(uuid) else None,
        memory_bytes=_bytes(memory) or None,
        driver=driver if _VERSION.fullmatch(driver) else None,
        architecture=f"sm_{sm[1]}{sm[2]}" if sm else None,
    )


def _bytes(value: str | None) -> int | None:
    match = _MEBIBYTES.fullmatch(value or "")
    return int(match[1]) << 20 if match else None


def _available_value(value: str) -> str | None:
    """Return a value of the table, None for placeholders such as [N/A], [GPU requires reset] or ERR!."""
    value = value.strip()
    return None if _PLACEHOLDER.fullmatch(value) else value


def _branded(name: str | None) -> str | None:
    if not name or name.lower().startswith("unknown"):
        return None
    return name if name.startswith("NVIDIA") else f"NVIDIA {name}"


def _facts(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
