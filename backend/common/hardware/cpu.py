"""The processor: name, cores, threads, and the instruction sets that speed up models."""

from __future__ import annotations

import platform
import re

from backend.common.hardware.host import Host, names_in
from backend.common.types import Hardware

# Name in /proc/cpuinfo → usual name. x86 first, then ARM.
_INSTRUCTIONS = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "avx512_fp16": "AVX-512 FP16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX BF16",
    "amx_int8": "AMX INT8",
    "asimd": "NEON",
    "asimdhp": "FP16",
    "asimddp": "DotProd",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
    "sve2": "SVE2",
    "sme": "SME",
}
_MAKERS = {
    "GenuineIntel": "Intel",
    "AuthenticAMD": "AMD",
    "HygonGenuine": "Hygon",
    "CentaurHauls": "Zhaoxin",
    "0x41": "Arm",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x53": "Samsung",
    "0x61": "Apple",
    "0xc0": "Ampere",
}
_CPU = re.compile(r"cpu\d+")


def linux_cpu(host: Host) -> Hardware:
    """Return the processor, from /proc/cpuinfo and /sys/devices/system/cpu."""
    facts: dict[str, str] = {}
    count = 0
    for line in host.read("proc/cpuinfo").splitlines():
        key, colon, value = (part.strip() for part in line.partition(":"))
        count += key == "processor"
        if colon:
            facts.setdefault(key, value)
    vendor = _MAKERS.get(facts.get("vendor_id") or facts.get("CPU implementer", ""))
    board = host.read("sys/firmware/devicetree/base/model") or facts.get("Model")
    model = facts.get("model name") or " ".join(
        filter(None, (vendor and f"{vendor} processor", board and f"({board})"))
    )
    flags = set((facts.get("flags") or facts.get("Features", "")).split())
    instructions = [name for flag, name in _INSTRUCTIONS.items() if flag in flags]
    return processor(host, model, vendor, _cores(host), count or None, instructions)


def processor(
    host: Host, name: str, vendor: str | None, cores: int | None, threads: int | None, instructions: list[str]
) -> Hardware:
    """Return the Hardware `cpu:0`, with the memory that this process may use."""
    return Hardware(
        id="cpu:0",
        name=" ".join(name.split()) or platform.machine() or "CPU",
        vendor=vendor,
        kind="cpu",
        memory_bytes=host.memory_bytes(),
        cores=cores,
        threads=threads,
        instructions=instructions,
    )


def maker_of(name: str) -> str | None:
    """Return the vendor that a processor's name contains, None if it contains none."""
    return next((maker for maker in ("Intel", "AMD", "Qualcomm", "Apple") if maker in name), None)


def _cores(host: Host) -> int | None:
    cores = set()
    for name in names_in(host.path("sys/devices/system/cpu")):
        if _CPU.fullmatch(name):
            package = host.read("sys/devices/system/cpu", name, "topology/physical_package_id")
            core = host.read("sys/devices/system/cpu", name, "topology/core_id")
            if core:
                cores.add((package, core))
    return len(cores) or None
