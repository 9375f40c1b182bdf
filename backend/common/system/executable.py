"""Why a program cannot be started: what its file is, read from the file itself."""

from __future__ import annotations

import os
import platform
import stat
import sys
from pathlib import Path

# Machines of ELF (e_machine, elf.h) and PE (winnt.h) headers, by the names that `platform.machine` returns.
_ELF = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le", 22: "s390x"}
_PE = {0x14C: "x86", 0x8664: "AMD64", 0xAA64: "ARM64"}
_MACH_O = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_SAME = {"amd64": "x86_64", "arm64": "aarch64", "x64": "x86_64"}


def program_fault(file: str, machine: str = "") -> str | None:
    """Return why a file cannot be started as a program, as a clause such as `is a folder`. None if nothing is wrong.

    `machine`: optional, as `platform.machine` names it. Default: this machine.
    """
    path = Path(file)
    if not path.exists():
        return f"is a link to {_end_of_links(path)}, which does not exist" if path.is_symlink() else "does not exist"
    if path.is_dir():
        return "is a folder"
    if sys.platform != "win32" and not path.stat().st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
        return "is not executable"
    if not os.access(path, os.X_OK):
        return "may not be executed by this user"
    try:
        with path.open("rb") as program:
            head = program.read(4096)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return _header_fault(head, machine or platform.machine())


def _end_of_links(path: Path) -> Path:
    """Return the first target in a chain of links that does not exist."""
    for _ in range(40):
        target = path.parent / path.readlink()
        if not target.is_symlink():
            return target
        path = target
    return path


def _header_fault(head: bytes, machine: str) -> str | None:
    if head.startswith(b"#!"):
        words = head.splitlines()[0][2:].decode("utf-8", "replace").split()
        if not words or not Path(words[0]).exists():
            return f"is a script for {words[0] if words else 'no program'}, which does not exist"
        return None
    built_for = _machine_of(head)
    if built_for is None:
        return "is not a program"
    if _SAME.get(built_for.lower(), built_for.lower()) != _SAME.get(machine.lower(), machine.lower()):
        return f"is a program for {built_for}, and this machine is {machine}"
    return None


def _machine_of(head: bytes) -> str | None:
    """Return the machine that a program's header names, `another system` if this system cannot run it, else None."""
    if head.startswith(b"\x7fELF") and len(head) >= 20:
        order = "little" if head[5] == 1 else "big"
        number = int.from_bytes(head[18:20], "little" if order == "little" else "big")
        return _ELF.get(number, f"machine {number}") if sys.platform == "linux" else "another system"
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        if sys.platform != "darwin":
            return "another system (macOS)"
        number = int.from_bytes(head[4:8], "little")
        return _MACH_O.get(number, platform.machine())  # a universal file holds several
    if head.startswith(b"MZ") and len(head) >= 64:
        if sys.platform != "win32":
            return "another system (Windows)"
        start = int.from_bytes(head[60:64], "little")
        return _PE.get(int.from_bytes(head[start + 4 : start + 6], "little"), platform.machine())
    return None
