"""Graphics and neural processors that are not on the PCI bus: parts of a system on a chip, and emulated adapters."""

from __future__ import annotations

import re
from pathlib import Path

from backend.common.hardware.access import refused
from backend.common.hardware.host import Host, link_name, names_in, text_of
from backend.common.hardware.pci import on_pci
from backend.common.types import DeviceKind, Hardware

# By prefix of the device tree's `compatible`.
_VENDORS = {
    "qcom": "Qualcomm",
    "arm": "Arm",
    "nvidia": "NVIDIA",
    "apple": "Apple",
    "brcm": "Broadcom",
    "img": "Imagination",
    "vivante": "Vivante",
    "rockchip": "Rockchip",
    "mediatek": "MediaTek",
    "amlogic": "Amlogic",
    "ethosu": "Arm",
}
_EMULATED = {
    "hyperv_drm": "the display of a Hyper-V machine",
    "vkms": "a display that the kernel emulates (vkms)",
    "vgem": "a memory device that the kernel emulates (vgem)",
    "evdi": "a USB display (DisplayLink)",
    "udl": "a USB display (DisplayLink)",
}
_NODE = re.compile(r"card\d+|accel\d+")


def devices_of(host: Host) -> list[Hardware]:
    """Return the devices in /sys/class/drm and /sys/class/accel that are not on the PCI bus."""
    items = []
    for group in ("drm", "accel"):
        folder = host.path("sys/class", group)
        for name in names_in(folder):
            path = folder / name / "device"
            if _NODE.fullmatch(name) and path.exists() and not on_pci(path):
                if hardware := _hardware(host, path, "npu" if group == "accel" else "integrated", name):
                    items.append(hardware)
    return items + _signal_processors(host)


def _signal_processors(host: Host) -> list[Hardware]:
    """Return Qualcomm's neural processor on Linux: the compute DSP of the driver fastrpc."""
    names = [name for name in names_in(host.path("sys/class/misc")) if name.startswith("fastrpc-cdsp")]
    if not names:
        return []
    file = host.path("dev", names[0])  # the second node is for signed programs
    reason, remedy = refused(host, file) or (None, None)
    return [
        Hardware(
            id=f"platform:{names[0]}",
            name="Qualcomm Hexagon NPU",
            vendor="Qualcomm",
            kind="npu",
            driver=f"fastrpc {host.read('proc/sys/kernel/osrelease')}".strip(),
            reason=reason,
            remedy=remedy,
        )
    ]


def _hardware(host: Host, path: Path, kind: DeviceKind, node: str) -> Hardware | None:
    facts = dict(line.partition("=")[::2] for line in text_of(path / "uevent").splitlines())
    driver = facts.get("DRIVER") or link_name(path / "driver")
    id_ = f"platform:{link_name(path) or node}"
    if driver in _EMULATED:
        return Hardware(
            id=id_,
            name=f"Display adapter ({driver})",
            vendor=None,
            kind="emulated",
            driver=driver,
            reason=f"It is {_EMULATED[driver]} and cannot compute.",
            remedy="Pass a physical card through to this machine, or use the CPU.",
        )
    shown = next((name for name in names_in(path / "drm") if name.startswith("renderD")), None)
    if kind == "integrated" and shown is None:
        return None  # a display controller that cannot render
    file = host.path("dev/dri", shown) if shown else host.path("dev/accel", node)
    reason, remedy = refused(host, file) or (None, None)
    maker, _, model = facts.get("OF_COMPATIBLE_0", "").partition(",")
    vendor = _VENDORS.get(maker)
    return Hardware(
        id=id_,
        name=" ".join(filter(None, (vendor or maker or None, model or driver or node))),
        vendor=vendor,
        kind=kind,
        driver=" ".join(filter(None, (driver, host.read("proc/sys/kernel/osrelease")))) if driver else None,
        reason=reason,
        remedy=remedy,
        render_node=host.shown(file),
    )
