"""WSL, in Linux that is made to look like it."""
# ruff: noqa: E501 (the words stand as they are seen)

from __future__ import annotations

from tests.launcher.situations.kinds import SERVE, WSL, Situation, program


def wsl(release: str, interop: bool = True, settings: str = "", networking: str = "", drive: bool = False) -> str:
    """Bash that makes a mount namespace look like WSL."""
    lines = [
        f"echo '{release}' >$T/release; mount --bind $T/release /proc/sys/kernel/osrelease",
        "mount -t tmpfs tmpfs /mnt; mkdir -p /mnt/c/Windows/System32/WindowsPowerShell/v1.0 $T/binfmt $T/home",
        "mount --bind $T/binfmt /proc/sys/fs/binfmt_misc",
        "touch /mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe",
        "touch $T/binfmt/WSLInterop" if interop else "",
        f"printf '[wsl2]\\n{settings}\\n' >$T/home/.wslconfig" if settings else "",
        program("cmd.exe", "echo C:/Users/me") + program("wslpath", 'echo "$T/home"') if settings else "",
        program("wslinfo", f"echo {networking}") if networking else "",
    ]
    return "\n".join(line for line in lines if line)


TWO, ONE = "6.6.87.2-microsoft-standard-WSL2", "4.4.0-19041-Microsoft"

SITUATIONS = (
    Situation(
        WSL,
        "WSL 1",
        (
            "touchstone: This is WSL 1, which cannot access GPUs; the CPU works.",
            "touchstone: For GPUs, run in PowerShell: wsl --set-version Ubuntu 2",
            "touchstone: On Windows: http://localhost:…",
        ),
        wsl(ONE),
        SERVE,
        env={"WSL_DISTRO_NAME": "Ubuntu"},
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "WSL 2 without a GPU from Windows",
        ("touchstone: This WSL has no GPU from Windows (/dev/dxg is missing); the CPU works. `./launch_wsl.sh doctor` shows how to change that.",),
        wsl(TWO),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "WSL 2 with NAT (the usual way)",
        ("touchstone: On Windows: http://localhost:…",),
        wsl(TWO, networking="nat"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "WSL 2 with mirrored networking",
        ("touchstone: On Windows: http://localhost:…",),
        wsl(TWO, networking="mirrored", settings="localhostForwarding=false"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "localhostForwarding=false",
        (
            "touchstone: Windows cannot reach port …: .wslconfig sets localhostForwarding=false.",
            "touchstone: Remove that line and run `wsl --shutdown` in PowerShell, or set TOUCHSTONE_TOKEN and start …",
        ),
        wsl(TWO, settings="localhostForwarding=false"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "localhostForwarding=false, in a .wslconfig that PowerShell wrote (UTF-16)",
        ("touchstone: Windows cannot reach port …: .wslconfig sets localhostForwarding=false.",),
        wsl(TWO, settings="localhostForwarding=false") + "\niconv -f utf-8 -t utf-16 $T/home/.wslconfig >$T/c; mv $T/c $T/home/.wslconfig",
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "localhostForwarding=false, listening on all addresses",
        ("touchstone: On Windows: http://… (.wslconfig sets localhostForwarding=false)",),
        wsl(TWO, settings="localhostForwarding = false"),
        SERVE,
        plan={"host": "0.0.0.0"},
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "networkingMode=none",
        ("touchstone: Windows cannot reach port …: .wslconfig sets networkingMode=none.",),
        wsl(TWO, settings="networkingMode=none"),
        SERVE,
        mounts=True,
        serves=True,
    ),
    Situation(
        WSL,
        "interop off: Windows' browser cannot be opened",
        (
            "touchstone: Windows programs cannot be started from here: open the address yourself. Ctrl-C stops …",
        ),
        wsl(TWO, interop=False),
        'env -u DISPLAY -u WAYLAND_DISPLAY "$F/launch_wsl.sh"',
        mounts=True,
        serves=True,
    ),
)  # fmt: skip
