"""Run a command with the recipes of a folder: `python -m tests.runtimes.with_recipes FOLDER PYTHON -m backend …`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from backend.runtimes import recipes

recipes.FOLDER = Path(sys.argv[1])
sys.argv = ["backend", *sys.argv[5:]]
runpy.run_module("backend", run_name="__main__")
