"""The kind of a chip: discrete card, part of the processor, accelerator, or emulated by software."""

from __future__ import annotations

from backend.common.hardware.chip_names import chip_name
from backend.common.types import DeviceKind

AMD, NVIDIA, INTEL, AMD_CPU = "1002", "10de", "8086", "1022"

# AMD's families by prefix of the chip's name, with the target of ROCm's compilers and whether the chip is part of a
# processor. Source: "Processors" in LLVM's AMDGPU usage guide, and AMD's compatibility tables.
AMD_FAMILIES: tuple[tuple[str, str, bool], ...] = (
    ("Aqua Vanjaram [Instinct MI35", "gfx950", False),
    ("Aqua Vanjaram", "gfx942", False),
    ("Aldebaran", "gfx90a", False),
    ("Arcturus", "gfx908", False),
    ("Navi 48", "gfx1201", False),
    ("Navi 44", "gfx1200", False),
    ("Navi 33", "gfx1102", False),
    ("Navi 32", "gfx1101", False),
    ("Navi 31", "gfx1100", False),
    ("Navi 24", "gfx1034", False),
    ("Navi 23", "gfx1032", False),
    ("Navi 22", "gfx1031", False),
    ("Navi 21", "gfx1030", False),
    ("Navi 14", "gfx1012", False),
    ("Navi 12", "gfx1011", False),
    ("Navi 10", "gfx1010", False),
    ("Vega 20", "gfx906", False),
    ("Vega 12", "gfx904", False),
    ("Vega 10", "gfx900", False),
    ("Krackan2", "gfx1153", True),
    ("Krackan", "gfx1152", True),
    ("Strix Halo", "gfx1151", True),
    ("Strix", "gfx1150", True),
    ("HawkPoint", "gfx1103", True),
    ("Phoenix", "gfx1103", True),
    ("Mendocino", "gfx1037", True),
    ("Raphael", "gfx1036", True),
    ("Granite Ridge", "gfx1036", True),
    ("Rembrandt", "gfx1035", True),
    ("VanGogh", "gfx1033", True),
    ("Sephiroth", "gfx1033", True),
    ("Cyan Skillfish", "gfx1013", True),
    ("Lucienne", "gfx90c", True),
    ("Renoir", "gfx90c", True),
    ("Cezanne", "gfx90c", True),
    ("Barcelo", "gfx90c", True),
    ("Picasso", "gfx902", True),
    ("Raven", "gfx902", True),
    ("Stoney", "gfx810", True),
    ("Wani", "gfx801", True),
    ("Carrizo", "gfx801", True),
    ("Kaveri", "gfx700", True),
    ("Kabini", "gfx703", True),
    ("Mullins", "gfx703", True),
)
_APU_TARGETS = {target for _, target, integrated in AMD_FAMILIES if integrated}
_INTEL_CARDS = ("DG1", "DG2", "ATS-M", "Battlemage", "Ponte Vecchio", "SG1", "Crescent Island")
_NPUS = {INTEL: "NPU", AMD_CPU: "Neural Processing Unit"}  # suffix of the chip's name
_NO_COMPUTING = {  # physical display chips in servers' management controllers
    "1a03": "ASPEED",
    "102b": "Matrox",
}
_VIRTUAL = {
    ("1234", "1111"): "the display of a QEMU or Bochs machine",
    ("1b36", "0100"): "the display of a QEMU machine (QXL)",
    ("1af4", "1050"): "a virtual machine's display (virtio)",
    ("15ad", "0405"): "the display of a VMware machine",
    ("15ad", "0406"): "the display of a VMware machine",
    ("80ee", "beef"): "the display of a VirtualBox machine",
    ("1414", "5353"): "the display of a Hyper-V machine",
    ("1414", "008c"): "Windows' software renderer (Microsoft Basic Render Driver)",
    ("1013", "00b8"): "the display of a virtual machine (Cirrus)",
    ("1d0f", "1111"): "the display of an Amazon EC2 machine",
    ("1ae0", "a002"): "the display of a Google Cloud machine",
}


def amd_target(vendor: str, device: str) -> str | None:
    """Return ROCm's compiler target, such as `gfx1100`, by the chip's family; None if the family is unknown."""
    family = _amd_family(vendor, device)
    return family[1] if family else None


def emulated_by(vendor: str, device: str) -> str | None:
    """Return what emulates this adapter, in words; None for physical hardware."""
    return _VIRTUAL.get((vendor, device))


def cannot_compute(vendor: str) -> bool:
    """Return whether a vendor's display chips are only for servers' management controllers."""
    return vendor in _NO_COMPUTING


def is_npu(vendor: str, device: str, device_class: int) -> bool:
    """Return whether it is a neural processor, not a GPU. AMD's have the class of signal processors (0x1180)."""
    name = chip_name(vendor, device) or ""
    if (ending := _NPUS.get(vendor)) and name.endswith(ending):
        return True
    return device_class >> 16 == 0x12 and vendor not in (AMD, NVIDIA) and not _intel_card(name)


def kind_of(
    vendor: str,
    device: str,
    *,
    bus: int,
    beside_cpu_parts: bool = False,
    own_memory: bool = False,
    target: str | None = None,
) -> DeviceKind:
    """Return a GPU's kind.

    `beside_cpu_parts`: other functions of the same slot belong to an AMD processor. `own_memory`: the driver reports
    memory on the card. `target`: optional, the compiler target that the driver reports.
    """
    name = chip_name(vendor, device) or ""
    if vendor == NVIDIA:
        return "gpu"
    if vendor == INTEL:
        return "gpu" if own_memory or _intel_card(name) else "integrated"
    if vendor == AMD:
        if target in _APU_TARGETS or beside_cpu_parts:
            return "integrated"
        if family := _amd_family(vendor, device):
            return "integrated" if family[2] else "gpu"
    return "integrated" if bus == 0 else "gpu"


def _intel_card(name: str) -> bool:
    return name.startswith(_INTEL_CARDS)


def _amd_family(vendor: str, device: str) -> tuple[str, str, bool] | None:
    name = chip_name(vendor, device) or "" if vendor == AMD else ""
    return next((family for family in AMD_FAMILIES if name.startswith(family[0])), None)
