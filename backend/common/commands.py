"""How the user of this process types a command of Touchstone, for remedies that name one.

The program that was started first leaves its own spelling in the variable TOUCHSTONE_LAUNCHER: the launchers
`./launch_wsl.sh` or `.\\launch.cmd`, the installed program `touchstone`. Child processes inherit it.
"""

from __future__ import annotations

import os
import sys

LAUNCHER_VARIABLE = "TOUCHSTONE_LAUNCHER"
BASH_LAUNCHER = "./launch_wsl.sh"
WINDOWS_LAUNCHER = ".\\launch.cmd"
INSTALLED = "touchstone"
MODULE = "python -m backend"
_SPELLINGS = (BASH_LAUNCHER, WINDOWS_LAUNCHER, INSTALLED)


def program() -> str:
    """Return the words that start Touchstone here. Default, and for an unknown value: `python -m backend`."""
    spelling = os.environ.get(LAUNCHER_VARIABLE, "")
    return spelling if spelling in _SPELLINGS else MODULE


def command(words: str) -> str:
    """Return the command line for a verb and its arguments, such as `./launch_wsl.sh runtimes install cuda`."""
    return f"{program()} {words}"


def launcher() -> str:
    """Return the launcher of this operating system."""
    return WINDOWS_LAUNCHER if sys.platform == "win32" else BASH_LAUNCHER


def announce(spelling: str) -> None:
    """Record how this process was started, for itself and its children. Keeps what an outer launcher recorded."""
    os.environ.setdefault(LAUNCHER_VARIABLE, spelling)
