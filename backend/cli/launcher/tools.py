"""System tools that tests need and pip cannot bring: found, installed where we may, or named with the one command."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backend.cli.launcher.console import say

MANAGERS = {
    "apt-get": "apt-get install -y --no-install-recommends",
    "dnf": "dnf install -y",
    "pacman": "pacman -S --noconfirm",
    "zypper": "zypper install -y",
    "brew": "brew install",
}


@dataclass(frozen=True)
class Tool:
    """A program known by any of some names, and the packages that bring it, by package manager."""

    names: tuple[str, ...]
    packages: Mapping[str, str]

    def find(self) -> Path | None:
        """The program, None if it is not here."""
        beside = str(Path(sys.executable).parent)  # pip puts programs there
        path = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
        found = next((found for name in self.names if (found := shutil.which(name, path=path))), None)
        return Path(found) if found else None

    def command(self) -> str | None:
        """The one command that brings it to this machine."""
        for manager, install in MANAGERS.items():
            if shutil.which(manager) and manager in self.packages:
                sudo = "" if manager == "brew" or _is_root() else "sudo "
                return f"{sudo}{install} {self.packages[manager]}"
        return None

    def install(self) -> None:
        """Root on Debian and Ubuntu only: elsewhere a password or a person's consent would be needed."""
        if not _is_root() or not shutil.which("apt-get") or "apt-get" not in self.packages:
            return
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-q"], (self.command() or "").split()):
            say(f"Installing as root: {' '.join(command)}")
            subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


CHROMIUM = Tool(
    ("chromium", "chromium-browser", "google-chrome"),
    {
        "apt-get": "chromium fonts-dejavu-core",
        "dnf": "chromium dejavu-sans-fonts",
        "pacman": "chromium ttf-dejavu",
        "zypper": "chromium dejavu-fonts",
        "brew": "--cask chromium",
    },
)
SHELLCHECK = Tool(
    ("shellcheck",), {**dict.fromkeys(MANAGERS, "shellcheck"), "dnf": "ShellCheck", "zypper": "ShellCheck"}
)
SHFMT = Tool(("shfmt",), dict.fromkeys(MANAGERS, "shfmt"))
BATS = Tool(("bats",), {**dict.fromkeys(MANAGERS, "bats"), "pacman": "bash-bats", "brew": "bats-core"})

NPM = Tool(("npm",), {**dict.fromkeys(MANAGERS, "npm"), "zypper": "npm-default", "brew": "node"})  # Node comes along


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0
