"""Failure layers: from an error text of a library, a driver or the system to the layer that failed and a remedy.

The patterns match texts of torch, ONNX Runtime, llama.cpp, dynamic loaders and drivers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from backend.common import error_patterns
from backend.common.commands import command
from backend.common.system import shared_libraries

Layer = Literal["hardware", "driver", "runtime package", "library load", "computation", "permission"]


@dataclass(frozen=True)
class Cause:
    """The layer that failed, and the remedy as a sentence. `absent`: something is missing rather than broken."""

    layer: Layer
    remedy: str
    absent: bool = False


_REFRESH = "then refresh"
_DRIVER = f"Update the device's driver, {_REFRESH}; run `{command('doctor')}` for the details."
_KNOWN: tuple[tuple[str, Layer, str], ...] = (
    (
        r"permission denied|EACCES|operation not permitted|access is denied",
        "permission",
        "Give your user access to the device: `ls -l` on the file in the message shows its group, "
        "`sudo usermod -aG GROUP $USER` joins it; log in again. For a container, pass in the device and the group.",
    ),
    (
        r"driver/library version mismatch|kernel driver does not match|nvml.*mismatch",
        "driver",
        f"The driver was updated while the system runs: restart the machine, {_REFRESH}.",
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
        f"This build has no code for the card's chip: install a build for it, {_REFRESH}.",
    ),
    (
        r"built for (?:the processor alone|CUDA|ROCm|Intel|Apple)",
        "runtime package",
        f"Install a build for this card: `{command('runtimes')}` lists the available ones. To use your own "
        "environment, name it under `runtimes` in config.yaml.",
    ),
    (
        r"no nvidia driver|cuda driver initialization failed|driver shutting down|driver not found|found no nvidia",
        "driver",
        f"Install the card's driver; in WSL2 the one for Windows, {_REFRESH}.",
    ),
    (
        r"vkCreateInstance|VK_ERROR_INCOMPATIBLE_DRIVER|failed to get a webgpu adapter|no supported adapters",
        "driver",
        "No Vulkan driver works for the card: install it (mesa-vulkan-drivers, or the vendor's), check that "
        f"VK_DRIVER_FILES does not hide it, {_REFRESH}.",
    ),
    (
        r"undefined symbol|symbol not found|version `[^']+' not found|_ARRAY_API|compiled using NumPy 1|abi mismatch"
        r"|procedure could not be found|DLL load failed|incompatible architecture|wrong ELF class|invalid ELF",
        "library load",
        "The packages of this environment are incompatible with each other: reinstall the runtime in a separate "
        f"environment, {_REFRESH}.",
    ),
    (
        r"no module named|cannot import name|has no attribute|partially initialized module|not compiled with",
        "runtime package",
        f"The package is missing or incomplete: reinstall it in that environment, {_REFRESH}.",
    ),
    (r"no space left on device|disk quota exceeded", "library load", f"Free some disk space, {_REFRESH}."),
)


def cause_of(text: str, otherwise: Layer = "computation", remedy: str = _DRIVER) -> Cause:
    """Return the layer and the remedy for an error text. Default: `otherwise` and `remedy`."""
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
        return Cause("computation", f"Close other programs that use the device's memory, {_REFRESH}.")
    if code == "device_lost":
        return Cause("driver", f"Restart the machine, or reset the device by its driver's tool, {_REFRESH}.")
    return Cause(otherwise, remedy)


def _of_library(library: str) -> Cause:
    if command := shared_libraries.command_for(library):
        return Cause("library load", f"Install {library} from the system's packages: {command}; {_REFRESH}.", True)
    if package := shared_libraries.package_providing(library):
        return Cause("driver", f"{library} comes with {package}: install or repair that, {_REFRESH}.", True)
    return Cause(
        "library load",
        f"Install the package with {library} in the runtime's environment (CUDA's libraries are pip packages named "
        f"nvidia-…), or reinstall the runtime, {_REFRESH}.",
        absent=True,
    )
