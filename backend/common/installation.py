"""Where the program's files are: in a checkout, or installed as a package by pip.

In a checkout `frontend/` and `requirements.txt` are beside `backend/`. A wheel has them inside the package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # the checkout; for an installed package its site-packages
DISTRIBUTION = "touchstone"


def is_installed() -> bool:
    """Return whether pip installed the package, as opposed to a checkout or the container's copy of one."""
    return (PACKAGE / "frontend").is_dir()


def program_file(name: str) -> Path:
    """Return the path of a file or folder that a checkout has at its root."""
    return (PACKAGE if is_installed() else ROOT) / name


def config_folder() -> Path:
    """Return the folder whose config.yaml is read by default, and beside which `data/` is.

    A checkout: its root. An installed program: the current folder if it has a config.yaml, else the user's data folder.
    """
    if not is_installed():
        return ROOT
    try:
        current = Path.cwd()
    except OSError:  # the current folder was deleted
        return user_data_dir()
    return current if (current / "config.yaml").is_file() else user_data_dir()


def user_data_dir() -> Path:
    """Return the user's folder for this application's data, by each platform's convention. It may not exist yet."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / DISTRIBUTION


def base_requirements() -> list[str]:
    """Return the requirements of the runtime `base`, one a line: from requirements.txt, or the package's metadata."""
    if not is_installed():
        return program_file("requirements.txt").read_text(encoding="utf-8").splitlines()
    from importlib import metadata

    return metadata.requires(DISTRIBUTION) or []
