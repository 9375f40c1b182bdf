"""From what a library, a driver or the system said to the layer that failed, and what a user can do about it.

The texts are those that torch, ONNX Runtime, llama.cpp, the loaders and the drivers print themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from backend.common import error_patterns
from backend.common.system import shared_libraries

Layer = Literal["hardware", "driver", "runtime package", "library load", "computation", "permission"]


@dataclass(frozen=True)
class Cause:
    """The layer that failed, and what to do, in a sentence. `absent`: something is not there rather than broken."""

    layer: Layer
    remedy: str
    absent: bool = False


_REFRESH = "then refresh"
_DRIVER = f"Update the device's driver, {_REFRESH}; run `doctor` for the details."
_KNOWN: tuple[tuple[str, Layer, str], ...] = (
    (
        r"permission denied|EACCES|operation not permitted|access is denied",
        "permission",
        "Give your user the right to the device: `ls -l` on the file that is named shows its group, "
        "`sudo usermod -aG GROUP $USER` joins it; log in again. In a container pass the device and the group in.",
    ),
    (
        r"driver/library version mismatch|kernel driver does not match|nvml.*mismatch",
        "driver",
        f"The driver was updated under the running system: restart the machine, {_REFRESH}.",
    ),
    (
        r"driver (?:on your system )?is too old|driver version is insufficient|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|"
        r"forward compatibility was attempted|requires a newer driver",
        "driver",
        "The driver is older than this build needs: update the driver, or install a build for an older CUDA, "
        f"{_REFRESH}.",
    ),
    (
        r"no kernel image is available|invalid device function|hipErrorNoBinaryForGpu|not compatible with the current"
        r"|no code object|not supported by this build|unsupported gpu architecture",
        "runtime package",
        f"This build has no code for the card's chip: install one that was made for it, {_REFRESH}.",
    ),
    (
        r"built for (?:the processor alone|CUDA|ROCm|Intel|Apple)",
        "runtime package",
        "Install a build that was made for this card: `runtimes` lists those that come beside this one, and an "
        "environment of your own can be named under `runtimes` in config.yaml.",
    ),
    (
        r"no nvidia driver|cuda driver initialization failed|driver shutting down|driver not found|found no nvidia",
        "driver",
        f"Install the card's driver; in WSL2 the one for Windows, {_REFRESH}.",
    ),
    (
        r"vkCreateInstance|VK_ERROR_INCOMPATIBLE_DRIVER|failed to get a webgpu adapter|no supported adapters",
        "driver",
        "No Vulkan driver answers for the card: install it (mesa-vulkan-drivers, or the vendor's), see that "
        f"VK_DRIVER_FILES does not hide it, {_REFRESH}.",
    ),
    (
        r"undefined symbol|symbol not found|version `[^']+' not found|_ARRAY_API|compiled using NumPy 1|abi mismatch"
        r"|procedure could not be found|DLL load failed|incompatible architecture|wrong ELF class|invalid ELF",
        "library load",
        "The packages of this environment do not fit each other: install the runtime anew, in an environment of its "
        f"own, {_REFRESH}.",
    ),
    (
        r"no module named|cannot import name|has no attribute|partially initialized module|not compiled with",
        "runtime package",
        f"The package is missing or not whole: install it anew in that environment, {_REFRESH}.",
    ),
    (r"no space left on device|disk quota exceeded", "library load", f"Free some disk space, {_REFRESH}."),
)


def cause_of(text: str, otherwise: Layer = "computation", remedy: str = _DRIVER) -> Cause:
    """The layer and the remedy for what was said; `otherwise` and `remedy` where the text is not known."""
    if library := shared_libraries.missing_library(text):
        return _of_library(library)
    if needed := shared_libraries.missing_glibc(text):
        return Cause(
            "library load",
            f"The system's C library is older than {needed}, which the package needs: use an older version of the "
            "package or a newer system.",
            absent=True,
        )
    for pattern, layer, advice in _KNOWN:
        if re.search(pattern, text, re.IGNORECASE):
            return Cause(layer, advice, absent=True)
    code = "out_of_memory" if "MemoryError" in text else error_patterns.classify_error_text(text)
    if code == "out_of_memory":
        return Cause(
            "computation", f"Close what else uses the device's memory or lower other programs' share of it, {_REFRESH}."
        )
    if code == "device_lost":
        return Cause("driver", f"Restart the machine, or reset the device by its driver's tool, {_REFRESH}.")
    return Cause(otherwise, remedy)


def _of_library(library: str) -> Cause:
    if command := shared_libraries.command_for(library):
        return Cause("library load", f"Install {library} with the system's packages: {command}; {_REFRESH}.", True)
    if bringer := shared_libraries.package_providing(library):
        return Cause("driver", f"{library} comes with {bringer}: install or repair that, {_REFRESH}.", True)
    return Cause(
        "library load",
        f"Install what brings {library} into the runtime's environment (CUDA's libraries come as pip packages named "
        f"nvidia-…), or the runtime anew, {_REFRESH}.",
        absent=True,
    )
