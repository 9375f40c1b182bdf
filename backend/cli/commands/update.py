"""Update to a newer version or go back to the last one; models, jobs and settings stay, devices are proved again.

The launcher does it, with the Python that the environment was made from, because it may replace the environment.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from backend.common.errors import Configuration
from backend.common.installation import is_installed

LAUNCHER = Path(__file__).resolve().parents[1] / "launcher"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the launcher's flags."""
    parser.add_argument("file", nargs="?", metavar="FILE.zip", help="newer version, for copies without version control")
    parser.add_argument("--check", action="store_true", help="only report whether a newer version exists")
    parser.add_argument("--back", action="store_true", help="go back to the version before the last update")


def run(args: argparse.Namespace) -> int:
    """Run the launcher and return its exit code. Raises Configuration for a package that pip installed."""
    if is_installed():
        raise Configuration(
            "This copy was installed by pip, which also updates it.",
            f"Run: {sys.executable} -m pip install --upgrade FOLDER, with the folder of the newer version.",
        )
    chosen = [f"--{name}" for name in ("check", "back") if getattr(args, name)]
    python = getattr(sys, "_base_executable", sys.executable)
    words = [python, "-I", str(LAUNCHER), "update", *chosen, *([args.file] if args.file else [])]
    return subprocess.run(words, check=False).returncode
