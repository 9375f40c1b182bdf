"""System tools that tests need and pip cannot install: finds them, installs them as root, or names the command."""

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
    """A program with its possible names, and its packages by package manager."""

    names: tuple[str, ...]
    packages: Mapping[str, str]

    def find(self) -> Path | None:
        """Return the program's path. Optional: None if it is not installed."""
        scripts = str(Path(sys.executable).parent)  # pip installs programs there
        path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
        paths = (shutil.which(name, path=path) for name in self.names)
        first = next(filter(None, paths), None)
        return Path(first) if first else None

    def command(self) -> str | None:
        """Return the command that installs it here. Optional: None without a known package manager."""
        for manager, install in MANAGERS.items():
            if shutil.which(manager) and manager in self.packages:
                sudo = "" if manager == "brew" or _is_root() else "sudo "
                return f"{sudo}{install} {self.packages[manager]}"
        return None

    def install(self) -> None:
        """Install it, as root on Debian and Ubuntu only: elsewhere a password or the user's consent is required."""
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

NPM = Tool(("npm",), {**dict.fromkeys(MANAGERS, "npm"), "zypper": "npm-default", "brew": "node"})  # it includes Node


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0
