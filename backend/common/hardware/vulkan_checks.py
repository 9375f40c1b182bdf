"""Checks of Vulkan on Linux: the files that describe its drivers."""

from __future__ import annotations

from collections.abc import Iterator

from backend.common.hardware.checks import Check
from backend.common.hardware.host import Host, names_in
from backend.common.types import Hardware

_FOLDERS = ("usr/share/vulkan/icd.d", "etc/vulkan/icd.d", "usr/local/share/vulkan/icd.d")
_SOFTWARE = ("lvp_", "vk_swiftshader")
_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_MESA = "Install Mesa's drivers (Debian, Ubuntu: `sudo apt-get install -y mesa-vulkan-drivers`), or NVIDIA's driver."


def vulkan_checks(host: Host, hardware: list[Hardware]) -> Iterator[Check]:
    """Check the drivers, if there is a card that Vulkan could reach."""
    if not any(item.kind in ("gpu", "integrated") for item in hardware):
        return
    for name in _VARIABLES:
        files = [part for part in host.environment.get(name, "").split(":") if part]
        for missing in (part for part in files if not host.path(part).exists()):
            yield Check(
                "vulkan-driver-files",
                "settings",
                "problem",
                f"{name} names {missing}, which does not exist.",
                f"Unset {name}, or set it to the file of an installed driver.",
            )
    drivers = [name for folder in _FOLDERS for name in names_in(host.path(folder)) if name.endswith(".json")]
    if not drivers:
        yield Check("vulkan-no-driver", "library load", "note", "No Vulkan driver is installed.", _MESA)
    elif all(name.startswith(_SOFTWARE) for name in drivers):
        detail = f"Vulkan has only a software renderer here ({', '.join(drivers)})."
        yield Check("vulkan-software-only", "library load", "note", detail, _MESA)
    else:
        yield Check("vulkan-drivers", "library load", "ok", f"Vulkan has {', '.join(drivers)}.")
