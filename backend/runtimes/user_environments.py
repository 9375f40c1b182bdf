"""The environments that the user names in the settings: an interpreter, or a folder of llama.cpp's shared libraries.

A folder gets a small environment in the data folder: an interpreter, the packages that render chat templates, and a
file with the path of the folder, which `devices/_mechanisms/llama_builds.py` reads. So it is probed like any other.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import venv
from pathlib import Path

from backend.common.config.settings import Settings
from backend.devices import LIBRARIES_FILE

log = logging.getLogger(__name__)
FOLDER = "llama-libraries"  # in the data folder
_PACKAGES = ("jinja2", "markupsafe")


def user_pythons(settings: Settings) -> dict[str, str]:
    """Return the interpreters of the environments that the settings name, by runtime."""
    pythons = {name: str(rules.python) for name, rules in settings.runtimes.items() if rules.python}
    for name, rules in settings.runtimes.items():
        if rules.libraries and not rules.python:
            pythons[name] = str(make_environment(settings.data_dir / FOLDER / name, rules.libraries))
    return pythons


def make_environment(folder: Path, libraries: Path) -> Path:
    """Create the environment for a folder of libraries, unless it is there; return its interpreter.

    An OSError is logged: the probe of the interpreter then shows what is missing.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        if not python.exists():
            venv.create(folder, clear=True, symlinks=os.name != "nt")
            _copy_packages(next(folder.rglob("site-packages")))
        (folder / LIBRARIES_FILE).write_text(str(libraries), encoding="utf-8")
    except OSError as error:
        log.warning("environment for libraries failed", extra={"folder": str(folder), "reason": str(error)})
    return python


def _copy_packages(site: Path) -> None:
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            ignored = shutil.ignore_patterns("__pycache__", f"*{'.so' if sys.platform == 'win32' else '.pyd'}")
            shutil.copytree(Path(spec.origin).parent, site / name, ignore=ignored)
