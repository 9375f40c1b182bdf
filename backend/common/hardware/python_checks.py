"""Checks of the server's Python: kinds that cannot install the packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from backend.common.hardware.checks import Check
from backend.common.hardware.host import COMMAND_LIMIT_S, Host

_STORE = "\\windowsapps\\"
_OWN = "Install Python from python.org (`winget install Python.Python.3.12`), delete .venv and start the launcher."


def python_checks(
    host: Host,
    home: str = sys.base_prefix,
    bits: int = 64 if sys.maxsize > 2**32 else 32,
    libc: str | None = None,
) -> Iterator[Check]:
    """Check the Python installation.

    `home`: its folder; default: the installation behind the running environment. `bits`: 32 or 64. `libc`: optional,
    the C library.
    """
    if bits == 32:
        detail = "This Python is a 32-bit program; the required packages do not support it."
        yield Check("python-32-bit", "system", "problem", detail, _OWN)
    if host.platform == "win32" and _STORE in home.lower().replace("/", "\\"):
        detail = "This Python is from the Microsoft Store. It writes to a private copy of some folders."
        yield Check("python-store", "system", "note", detail, _OWN)
    if libc and libc.startswith("musl"):
        detail = "This Linux uses the C library musl; ONNX Runtime and torch only support glibc."
        remedy = "Use a Debian, Ubuntu or Fedora image instead of Alpine."
        yield Check("musl", "system", "problem", detail, remedy)
    if host.platform == "darwin":
        answer = host.run(("/usr/sbin/sysctl", "-n", "sysctl.proc_translated"), COMMAND_LIMIT_S)
        if answer.text.strip() == "1":
            detail = "This Python is for Intel processors and runs through Rosetta, so it cannot use Apple's GPU."
            remedy = "Install an arm64 Python, delete .venv and start the launcher."
            yield Check("rosetta", "system", "problem", detail, remedy)
