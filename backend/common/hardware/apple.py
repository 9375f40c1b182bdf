"""Macs: graphics from `system_profiler`, the processor from `sysctl`."""

from __future__ import annotations

import json
import re
from typing import Any

from backend.common.hardware.chip_names import vendor_name
from backend.common.hardware.cpu import maker_of, processor
from backend.common.hardware.host import COMMAND_LIMIT_S, Host, number
from backend.common.types import Hardware, JsonObject

GRAPHICS = ("/usr/sbin/system_profiler", "-json", "SPDisplaysDataType")
PROCESSOR = (
    "/usr/sbin/sysctl",
    *("machdep.cpu.brand_string", "hw.model", "hw.memsize", "hw.physicalcpu", "hw.logicalcpu", "hw.optional.arm"),
)
_INSTRUCTIONS = {
    "hw.optional.arm.FEAT_FP16": "FP16",
    "hw.optional.arm.FEAT_DotProd": "DotProd",
    "hw.optional.arm.FEAT_BF16": "BF16",
    "hw.optional.arm.FEAT_I8MM": "I8MM",
    "hw.optional.arm.FEAT_SME": "SME",
}
_SIZE = re.compile(r"(\d+)\s*([MG])B")
_SILICON = re.compile(r"Apple M\d")
_MEGA = 1 << 20


def mac(host: Host) -> list[Hardware]:
    """Return the processor, the graphics, and the neural engine of Apple's chips."""
    values = _sysctl(host.run(PROCESSOR, COMMAND_LIMIT_S).text)
    brand = values.get("machdep.cpu.brand_string", "")
    items = [_cpu(host, brand, values)]
    system = host.run(("/usr/bin/sw_vers", "-productVersion"), COMMAND_LIMIT_S).text.strip()
    answer = host.run(GRAPHICS, COMMAND_LIMIT_S)
    items += graphics(answer.text, number(values.get("hw.memsize", "")), f"macOS {system}" if system else None)
    if _SILICON.match(brand) and not values.get("hw.model", "").startswith("VirtualMac"):
        items.append(Hardware("platform:apple-ane", "Apple Neural Engine", "Apple", "npu"))
    return items


def graphics(text: str, memory_bytes: int | None, driver: str | None) -> list[Hardware]:
    """Parse the cards in the JSON of `system_profiler`. Apple's GPUs share the machine's memory."""
    try:
        entries = json.loads(text)["SPDisplaysDataType"]
    except (ValueError, KeyError, TypeError):
        return []
    cards = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [_card(index, entry, memory_bytes, driver) for index, entry in enumerate(cards) if _name(entry)]


def _card(index: int, entry: JsonObject, memory_bytes: int | None, driver: str | None) -> Hardware:
    name = _name(entry)
    own, shared = _size(entry.get("spdisplays_vram")), _size(entry.get("spdisplays_vram_shared"))
    apple = name.startswith("Apple")
    vendor, device = (_hex(entry.get(key)) for key in ("spdisplays_vendor-id", "spdisplays_device-id"))
    return Hardware(
        id="platform:apple-gpu" if index == 0 else f"platform:apple-gpu-{index}",
        name=name,
        vendor="Apple" if apple else maker_of(name) or (vendor_name(vendor) if vendor else None),
        kind="integrated" if apple or entry.get("sppci_bus") == "spdisplays_builtin" else "gpu",
        memory_bytes=own,
        memory_shared_bytes=shared or (memory_bytes if apple else None),
        driver=driver,
        pci_ids=f"{vendor}:{device}" if vendor and device else None,
        cores=number(str(entry.get("sppci_cores", ""))),
    )


def _name(entry: JsonObject) -> str:
    name = entry.get("sppci_model") or entry.get("_name")
    return name if isinstance(name, str) else ""


def _cpu(host: Host, brand: str, values: dict[str, str]) -> Hardware:
    instructions = [name for key, name in _INSTRUCTIONS.items() if values.get(key) == "1"]
    cores, threads = number(values.get("hw.physicalcpu", "")), number(values.get("hw.logicalcpu", ""))
    return processor(host, brand, maker_of(brand), cores, threads, instructions)


def _sysctl(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _size(text: Any) -> int | None:
    match = _SIZE.search(text) if isinstance(text, str) else None
    return int(match[1]) * _MEGA * (1024 if match[2] == "G" else 1) if match else None


def _hex(text: Any) -> str | None:
    match = re.search(r"0x([0-9a-f]{4})\b", text.lower()) if isinstance(text, str) else None
    return match[1] if match else None
