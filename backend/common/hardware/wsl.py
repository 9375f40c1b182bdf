"""The Windows Subsystem for Linux: its version, and access to Windows' PowerShell."""

from __future__ import annotations

from backend.common.hardware.host import Host, names_in

LIBRARIES = "usr/lib/wsl/lib"
NODE = "dev/dxg"
_POWERSHELL = "mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"


def wsl(host: Host) -> int | None:
    """Return the version, 1 or 2; None outside WSL.

    WSL 1 imitates a Linux kernel's version; WSL 2 runs Microsoft's build of the kernel.
    """
    release = host.read("proc/sys/kernel/osrelease") or host.read("proc/version")
    if "microsoft" not in release.lower() and "WSL_INTEROP" not in host.environment:
        return None
    old = "Microsoft" in release and "WSL2" not in release and "standard" not in release
    return 1 if old else 2


def powershell(host: Host) -> str | None:
    """Return the path of Windows' PowerShell, None if this Linux cannot start Windows programs."""
    if host.platform == "win32":
        return "powershell.exe"
    if not wsl(host):
        return None
    allowed = any(name.startswith("WSLInterop") for name in names_in(host.path("proc/sys/fs/binfmt_misc")))
    path = host.path(_POWERSHELL)
    return host.shown(path) if allowed and path.exists() else None
