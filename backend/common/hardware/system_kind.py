"""The kind of a system, which decides what a person can do there."""

from __future__ import annotations

from typing import Literal

from backend.common.hardware.container import container
from backend.common.hardware.host import Host
from backend.common.hardware.wsl import wsl

System = Literal["container", "wsl", "win32", "darwin", "linux"]


def system_of(host: Host) -> System:
    """Return the kind of a system. A container comes before WSL, and both before Linux."""
    if host.platform == "win32":
        return "win32"
    if host.platform == "darwin":
        return "darwin"
    if container(host):
        return "container"
    return "wsl" if wsl(host) else "linux"
