"""The facts and checks of the operating system. Takes seconds on Windows; runs in a child process."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator

from backend.common.hardware import windows
from backend.common.hardware.checks import Check, System
from backend.common.hardware.container import container
from backend.common.hardware.host import Host
from backend.common.hardware.libcuda import libcuda_checks
from backend.common.hardware.linux_checks import amd_checks, file_checks, nvidia_checks, thread_checks, wsl_checks
from backend.common.hardware.node_checks import node_checks
from backend.common.hardware.python_checks import python_checks
from backend.common.hardware.vulkan_checks import vulkan_checks
from backend.common.hardware.windows_checks import windows_checks
from backend.common.hardware.wsl import powershell, wsl
from backend.common.types import Hardware

_NAME = re.compile(r'^PRETTY_NAME="?([^"\n]*)"?', re.MULTILINE)


def system(host: Host, hardware: list[Hardware]) -> System:
    """Return the facts and all checks. `hardware`: the inventory."""
    shell = powershell(host)
    facts = windows.query_windows(host, shell) if shell else windows.Windows()
    libc = _libc(host)
    return System(
        name=_name(host, facts),
        kernel=host.read("proc/sys/kernel/osrelease") or platform.release(),
        machine=platform.machine(),
        wsl=wsl(host),
        container=container(host),
        libc=libc,
        groups=_groups(),
        checks=list(_checks(host, hardware, facts if shell else None, libc)),
    )


def _checks(host: Host, hardware: list[Hardware], facts: windows.Windows | None, libc: str | None) -> Iterator[Check]:
    yield from python_checks(host, libc=libc)
    if facts:
        yield from windows_checks(host, facts)
    if host.platform.startswith("linux"):
        yield from wsl_checks(host)
        yield from node_checks(host)
        yield from nvidia_checks(host, hardware)
        yield from amd_checks(host, hardware)
        yield from vulkan_checks(host, hardware)
    if host.platform != "darwin" and any(item.vendor == "NVIDIA" for item in hardware):
        yield from libcuda_checks(host)
    yield from thread_checks(host, hardware)
    yield from file_checks(host)


def _name(host: Host, facts: windows.Windows) -> str:
    if host.platform == "win32":
        return f"{facts.text('system', 'Caption')} {facts.text('system', 'Version')}".strip() or platform.platform()
    if host.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    match = _NAME.search(host.read("etc/os-release") or host.read("usr/lib/os-release"))
    return match[1] if match else "Linux"


def _libc(host: Host) -> str | None:
    if not host.platform.startswith("linux"):
        return None
    name, version = platform.libc_ver()
    if name:
        return f"{name} {version}"
    return "musl" if any(host.path("lib").glob("ld-musl-*")) else None


def _groups() -> list[str]:
    if sys.platform == "win32":
        return []
    import grp

    names = []
    for number in sorted({os.getegid(), *os.getgroups()}):
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            names.append(str(number))
    return names
