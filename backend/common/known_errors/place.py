"""Where an error happened: the system, and how the interpreter with the error was installed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from backend.common.hardware.host import Host
from backend.common.hardware.system_kind import System, system_of
from backend.common.installation import ROOT, is_installed

# launcher: `.venv` of a checkout. package: installed by pip. image: the container image. made: a runtime that
# Touchstone installed. own: an interpreter of the user, named in config.yaml or used to start the program.
Installation = Literal["launcher", "package", "image", "made", "own"]
BASE = "base"  # the runtime of the server's own environment
_MADE = "runtimes"  # the folder of installed runtimes in the data folder


@dataclass(frozen=True)
class Place:
    """`runtime` and `python` name the interpreter, `library` what it was importing; each is empty if unknown.

    `is_processor`: the device is the CPU, which has no driver.
    """

    system: System = "linux"
    installation: Installation = "own"
    runtime: str = ""
    python: str = ""
    library: str = ""
    is_processor: bool = False


@cache
def this_system() -> System:
    """Return the kind of this system."""
    return system_of(Host())


def place_of(runtime: str, python: str, library: str = "") -> Place:
    """Return the place of a runtime's interpreter."""
    return Place(this_system(), installation_of(runtime, python), runtime, python, library)


def installation_of(runtime: str, python: str) -> Installation:
    """Return how an interpreter was installed."""
    if runtime == BASE:
        if is_installed():
            return "package"
        if this_system() == "container":
            return "image"
        return "launcher" if Path(python or sys.executable).is_relative_to(ROOT / ".venv") else "own"
    parts = Path(python).parts
    return "made" if any(pair == (_MADE, runtime) for pair in zip(parts, parts[1:], strict=False)) else "own"
