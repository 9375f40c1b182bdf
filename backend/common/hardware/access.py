"""Whether this user may open a device node, and otherwise the remedy with the name of the group."""

from __future__ import annotations

from pathlib import Path

from backend.common.hardware.container import container
from backend.common.hardware.host import Host
from backend.common.hardware.wsl import wsl

_RENDER = "render"  # group of render and accelerator nodes in udev's rules


def refused(host: Host, path: Path) -> tuple[str, str] | None:
    """Return reason and remedy if the node is missing or not readable and writable, None if it is usable."""
    name = host.shown(path)
    if not path.exists():
        if runner := container(host):
            return (
                f"{name} is missing: this {runner} container was started without it.",
                f"Start the container with `--device {_device_option(name)}`.",
            )
        return (
            f"{name} is missing although the driver is loaded.",
            "Restart the machine; if that does not help, check `dmesg`.",
        )
    if host.may_use(path):
        return None
    group = host.group_of(path)
    reason = f"This user may not open {name}" + (f" (its group is {group})." if group else ".")
    return reason, _remedy(host, name, group)


def _device_option(name: str) -> str:
    return "/dev/dri" if name.startswith("/dev/dri/") else name


def _remedy(host: Host, name: str, group: str | None) -> str:
    if group and container(host):
        return f"Start the container with `--group-add {group}`."
    if group in (None, "root"):
        return (
            f"Give the node to the group {_RENDER}: `sudo chgrp {_RENDER} {name} && sudo chmod g+rw {name}` (a udev "
            f"rule makes this permanent), then `sudo usermod -aG {_RENDER} $USER`, log out and in again."
        )
    again = "`wsl --shutdown` on Windows and open WSL again" if wsl(host) else "log out and in again"
    return f"`sudo usermod -aG {group} $USER`, then {again}."
