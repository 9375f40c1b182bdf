"""The Windows Subsystem for Linux: its version, and access to Windows' PowerShell."""

from __future__ import annotations

import re

from backend.common.hardware.host import Host, names_in

LIBRARIES = "usr/lib/wsl/lib"
NODE = "dev/dxg"
_WSL_1 = re.compile(r"\d+\.\d+\.\d+(-\d+)?-Microsoft")  # "4.4.0-19041-Microsoft"
_WSL_2 = re.compile(r"WSL2|microsoft-standard", re.IGNORECASE)  # "-standard" alone before August 2020
_VARIABLES = ("WSL_INTEROP", "WSL_DISTRO_NAME")
_POWERSHELL = "mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"


def wsl(host: Host) -> int | None:
    """Return the version, 1 or 2; None outside WSL.

    WSL 1 imitates a Linux kernel's version, WSL 2 runs Microsoft's build of the kernel or the user's own, under any
    name. Kernels of Microsoft's cloud may have its name too (github.com/systemd/systemd/pull/15614), so only the names
    of WSL's own builds are proof; otherwise what WSL adds to the system decides.
    """
    release = _release(host)
    if _WSL_1.fullmatch(release):
        return 1
    if _WSL_2.search(release) and "azure" not in release.lower():
        return 2
    return 2 if _has_parts(host) else None


def _release(host: Host) -> str:
    """Return the kernel's release, such as `5.15.90.1-microsoft-standard-WSL2`; empty if unknown."""
    words = host.read("proc/version").split()
    return host.read("proc/sys/kernel/osrelease") or (words[2] if len(words) > 2 else "")


def _has_parts(host: Host) -> bool:
    """Return whether the system has what only WSL adds: variables, its sockets, the starter of Windows programs, or
    Windows' card with its libraries (also in a container inside WSL)."""
    if any(host.environment.get(name) for name in _VARIABLES):
        return True
    if host.path("run/WSL").exists() or _starters(host):
        return True
    return host.path(NODE).exists() and bool(names_in(host.path(LIBRARIES)))


def _starters(host: Host) -> list[str]:
    """Return the kernel's entries that start Windows programs: `WSLInterop`, `WSLInterop-late`."""
    return [name for name in names_in(host.path("proc/sys/fs/binfmt_misc")) if name.startswith("WSLInterop")]


def powershell(host: Host) -> str | None:
    """Return the path of Windows' PowerShell, None if this Linux cannot start Windows programs."""
    if host.platform == "win32":
        return "powershell.exe"
    if not wsl(host):
        return None
    path = host.path(_POWERSHELL)
    return host.shown(path) if _starters(host) and path.exists() else None
