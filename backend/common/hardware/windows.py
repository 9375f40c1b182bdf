"""Hardware and system facts of Windows, from the JSON of `windows_query`."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from backend.common.byte_sizes import parse_bytes
from backend.common.hardware import nvidia, windows_query
from backend.common.hardware.chip_names import product_name, vendor_name
from backend.common.hardware.chips import AMD, amd_target, emulated_by, is_npu, kind_of
from backend.common.hardware.cpu import maker_of, processor
from backend.common.hardware.host import Host
from backend.common.hardware.ids import luid_id, luid_text, pci_id
from backend.common.hardware.linux import card_of
from backend.common.types import DeviceKind, Hardware, JsonObject

_LUID_KEY = "60b193cb-5276-4d0f-96fc-f173abad3ec6"
_PCI = re.compile(r"PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})(?:.*&REV_([0-9A-F]{2}))?", re.IGNORECASE)
_CHIP_CLASS = re.compile(r"CC_(03|12)", re.IGNORECASE)
_GENERIC = ("NPU Compute Accelerator Device",)  # names that drivers use for many chips
_BASIC = ("basicdisplay", "basicrender")  # Windows' own drivers, by their service
# By prefix of the instance's name.
_EMULATED = {
    "ROOT\\BASICRENDER": "Windows' software renderer",
    "ROOT\\BASICDISPLAY": "Windows' basic display driver, without a card",
    "SWD\\REMOTEDISPLAYENUM": "the display of a remote desktop session",
    "SWD\\": "a display that a program emulates",
    "ROOT\\": "a display that a program emulates",
    "VMBUS\\": "the display of a Hyper-V machine",
    "USB\\": "a USB display",
}
_PROBLEMS = {  # error codes of Windows' device manager
    10: "it could not be started",
    12: "the machine has no free resources for it",
    14: "the machine must be restarted first",
    22: "it is disabled in the device manager",
    28: "no driver is installed",
    31: "its driver could not be loaded",
    43: "it reported a failure and was stopped",
    45: "it is not connected",
}
_TABLES = ("devices", "directx", "processor", "system")  # of the query's answer
_BRACES = 20  # of these at most the first one of the answer is looked for: a banner may contain some
_UNKNOWN = 0xFFFFFFFF  # of a bus number or an address
_DRIVER = "Install the vendor's driver for Windows, restart Windows, then refresh."


@dataclass(frozen=True)
class Windows:
    """The facts that Windows reported. `trouble`: optional, why there are none."""

    facts: JsonObject = field(default_factory=dict)
    trouble: str | None = None

    def text(self, *keys: str) -> str:
        """Return a fact as text, empty if it is missing."""
        value: Any = self.facts
        for key in keys:
            value = value[0] if isinstance(value, list) and value else value
            value = value.get(key) if isinstance(value, dict) else None
        return str(value).strip() if isinstance(value, str | int) else ""

    def rows(self, key: str) -> list[JsonObject]:
        """Return a table. PowerShell writes a single row without a list."""
        rows = self.facts.get(key)
        return [row for row in (rows if isinstance(rows, list) else [rows]) if isinstance(row, dict)]


def query_windows(host: Host, powershell: str) -> Windows:
    """Query Windows through PowerShell, with a timeout."""
    answer = host.run(windows_query.command(powershell), windows_query.LIMIT_S)
    return parse_facts(answer.text, answer.trouble)


def parse_facts(text: str, trouble: str | None = None) -> Windows:
    """Parse the JSON, ignoring text before and after it."""
    for brace in list(re.finditer("{", text))[:_BRACES]:
        with contextlib.suppress(ValueError, RecursionError):
            facts, _ = json.JSONDecoder().raw_decode(text, brace.start())
            if any(key in facts for key in _TABLES):
                return Windows(facts)
    return Windows(trouble=trouble or "Windows' PowerShell printed no JSON")


def windows_cpu(host: Host, windows: Windows) -> Hardware:
    """Return the processor as Windows describes it."""
    name = windows.text("processor", "Name")
    cores, threads = (_int(windows.text("processor", key)) for key in ("NumberOfCores", "NumberOfLogicalProcessors"))
    return processor(host, name, maker_of(f"{name} {windows.text('processor', 'Manufacturer')}"), cores, threads, [])


def adapters(windows: Windows, driver: nvidia.Driver) -> list[Hardware]:
    """Return the display adapters and neural processors, with facts of NVIDIA's tool and cards that only it lists."""
    by_luid = {_luid(row.get("AdapterLuid")): row for row in windows.rows("directx")}
    items: dict[str, Hardware] = {}
    for item in filter(None, (_adapter(row, by_luid) for row in windows.rows("devices"))):
        others = sum(id_.partition("#")[0] == item.id for id_ in items)
        id_ = f"{item.id}#{others + 1}" if others else item.id
        items[id_] = _with_nvidia_facts(replace(item, id=id_), driver)
    located = all(item.id.startswith("pci:") for item in items.values() if item.vendor == "NVIDIA")
    more = [card_of(id_, facts) for id_, facts in driver.cards.items() if located and id_ not in items]
    return [*items.values(), *more]


def _with_nvidia_facts(item: Hardware, driver: nvidia.Driver) -> Hardware:
    facts, failure = driver.cards.get(item.id, nvidia.CardFacts()), driver.card_failures.get(item.id)
    if failure and not item.reason:
        item = replace(item, reason=failure.reason, remedy=failure.remedy)
    return replace(
        item,
        memory_bytes=facts.memory_bytes or item.memory_bytes,
        uuid=facts.uuid,
        architecture=facts.architecture or item.architecture,
    )


def _adapter(row: JsonObject, by_luid: dict[int | None, JsonObject]) -> Hardware | None:
    instance, name = str(row.get("instance") or ""), _name(row.get("name"))
    chip = _PCI.match(instance)
    if row.get("class") not in ("Display", "ComputeAccelerator") and not _is_chip(row, instance):
        return None
    vendor, device, revision = (part.lower() if part else "" for part in chip.groups()) if chip else ("", "", "")
    properties = _properties(row)
    luid = _luid(next((value for key, value in properties.items() if _LUID_KEY in key.lower()), None))
    memory = by_luid.get(luid, {}) if luid else {}
    bus, address = (_place(properties.get(f"DEVPKEY_Device_{key}")) for key in ("BusNumber", "Address"))
    reason, remedy = _obstacle(row, instance, vendor, device)
    basic = str(row.get("service") or "").lower() in _BASIC
    product = product_name(vendor, device, revision or None)
    has_generic_name = basic or not name or name in _GENERIC or row.get("error") == 28
    version = properties.get("DEVPKEY_Device_DriverVersion")
    return Hardware(
        id=_pci(bus, address) if chip and bus is not None and address is not None else _other_id(luid, instance),
        name=(product or name if has_generic_name else name) or "Display adapter",
        vendor=vendor_name(vendor) or maker_of(f"{row.get('maker')} {name}"),
        kind=_kind(row, instance, vendor, device, bus),
        memory_bytes=parse_bytes(memory.get("DedicatedVideoMemory")) or parse_bytes(row.get("memory")),
        memory_shared_bytes=parse_bytes(memory.get("SharedSystemMemory")),
        driver=str(version) if version else None,
        driver_date=date if isinstance(date := properties.get("DEVPKEY_Device_DriverDate"), str) else None,
        reason=reason,
        remedy=remedy,
        pci_ids=f"{vendor}:{device}" if chip else None,
        architecture=amd_target(vendor, device) if vendor == AMD else None,
        luid=luid_text(luid) if luid else None,
    )


def _properties(row: JsonObject) -> JsonObject:
    """Return the properties of a device. PowerShell may write them as a list of one."""
    properties = row.get("properties")
    if isinstance(properties, list) and len(properties) == 1:
        properties = properties[0]
    return properties if isinstance(properties, dict) else {}


def _name(value: object) -> str:
    """Return a name without characters that its output encoding lost, such as a trademark sign."""
    return " ".join(str(value or "").replace("\ufffd", " ").split())


def _luid(value: object) -> int | None:
    """Parse a LUID, which the registry holds as a signed number."""
    try:
        return int(str(value)) & 0xFFFFFFFF_FFFFFFFF
    except ValueError:
        return None


def _place(value: object) -> int | None:
    number = _int(value)
    return None if number == _UNKNOWN else number


def _is_chip(row: JsonObject, instance: str) -> bool:
    """Return whether it is a card without a driver: Windows assigns no class, but lists compatible classes."""
    compatible = row.get("compatible")
    classes = compatible if isinstance(compatible, list) else [compatible]
    return instance.upper().startswith("PCI\\") and any(_CHIP_CLASS.search(str(name)) for name in classes)


def _pci(bus: int, address: int) -> str:
    """Return the PCI id. The address contains device and function in 16 bits each."""
    return pci_id(bus >> 8, bus & 0xFF, address >> 16 & 0x1F, address & 7)


def _other_id(luid: int | None, instance: str) -> str:
    """Return an id without a PCI address: the LUID, else the instance name without a possible serial number."""
    return luid_id(luid) if luid else "platform:" + "\\".join(instance.lower().split("\\")[:2])


def _kind(row: JsonObject, instance: str, vendor: str, device: str, bus: int | None) -> DeviceKind:
    if _emulator(instance, vendor, device):
        return "emulated"
    if row.get("class") == "ComputeAccelerator" or (vendor and is_npu(vendor, device, 0)):
        return "npu"
    return kind_of(vendor, device, bus=bus or 0) if vendor else "integrated"


def _emulator(instance: str, vendor: str, device: str) -> str | None:
    prefix = next((start for start in _EMULATED if instance.upper().startswith(start)), None)
    return _EMULATED[prefix] if prefix else emulated_by(vendor, device)


def _obstacle(row: JsonObject, instance: str, vendor: str, device: str) -> tuple[str | None, str | None]:
    if emulator := _emulator(instance, vendor, device):
        return f"It is {emulator} and cannot compute.", "Use the machine's physical card, or the CPU."
    if error := _int(row.get("error")):
        what = _PROBLEMS.get(error, "it does not work")
        return f"Windows' device manager reports: {what} (code {error}).", _DRIVER
    if str(row.get("service") or "").lower() in _BASIC:
        return "It uses Windows' basic display driver, which cannot compute.", _DRIVER
    return None, None


def _int(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if number >= 0 else None
