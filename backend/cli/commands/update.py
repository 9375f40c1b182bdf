"""Take a newer version, or go back to the last one; models, jobs and settings stay, every device is proved again.

The launcher does it, with the Python that the environment was made from: the environment itself may be exchanged.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

LAUNCHER = Path(__file__).resolve().parents[1] / "launcher"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of the launcher."""
    parser.add_argument("file", nargs="?", metavar="FILE.zip", help="for copies without version control")
    parser.add_argument("--check", action="store_true", help="only say whether there is a newer version")
    parser.add_argument("--back", action="store_true", help="go back to the version before the last update")


def run(args: argparse.Namespace) -> int:
    """The launcher's exit code."""
    chosen = [f"--{name}" for name in ("check", "back") if getattr(args, name)]
    python = getattr(sys, "_base_executable", sys.executable)
    words = [python, "-I", str(LAUNCHER), "update", *chosen, *([args.file] if args.file else [])]
    return subprocess.run(words, check=False).returncode
