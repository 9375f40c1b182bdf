"""Checks of Windows: what packages require, and settings that break them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backend.common.hardware.checks import Check, Side
from backend.common.hardware.host import Host
from backend.common.hardware.windows import Windows

_BUILD_WITH_GPUS = 19041  # minimum for DirectML's packages and WSL 2
_FILE_SYSTEM = "HKLM:\\SYSTEM\\CurrentControlSet\\Control\\FileSystem"
_VC = "Install Microsoft's Visual C++ runtime: `winget install Microsoft.VCRedist.2015+.x64`, then restart the server."


def windows_checks(host: Host, windows: Windows) -> Iterator[Check]:
    """Check Windows. Inside WSL, the remedies apply to the Windows side."""
    side: Side = "here" if host.platform == "win32" else "windows"
    if windows.trouble:
        yield Check("windows-silent", "system", "note", f"The query of Windows failed: {windows.trouble}.", None, side)
        return
    build = re.search(r"10\.0\.(\d+)", windows.text("system", "Version"))
    if build and int(build[1]) < _BUILD_WITH_GPUS:
        detail = f"This Windows is build {build[1]}; GPU packages require {_BUILD_WITH_GPUS} or newer."
        yield Check("windows-old", "system", "problem", detail, "Update Windows.", side)
    if host.platform != "win32":
        return
    if not windows.text("vc_runtime"):
        detail = "Microsoft's Visual C++ runtime is not installed; torch and ONNX Runtime do not load without it."
        yield Check("vc-runtime-missing", "library load", "problem", detail, _VC)
    else:
        yield Check("vc-runtime", "library load", "ok", f"Visual C++ runtime {windows.text('vc_runtime')}.")
    if windows.text("long_paths") != "1":
        yield Check(
            "long-paths-off",
            "settings",
            "note",
            "Paths longer than 260 characters are disabled; torch's packages contain some.",
            f"As administrator: `Set-ItemProperty {_FILE_SYSTEM} LongPathsEnabled 1`; or use a folder such as C:\\ts.",
        )
    if hip := windows.text("hip_path"):
        yield Check("hip-sdk", "driver", "ok", f"AMD's HIP SDK is at {hip}.")
