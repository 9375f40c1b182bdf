"""Clients of other projects with a real server: `python -m tests.slow.other_clients [--python PATH]`.

They are heavy (some 400 MB), so they get an environment of their own, made here unless `--python` names one that has
them, and do not run with the other tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from backend.common.config.settings import load_settings
from backend.models import Catalogue
from tests.conftest import MODEL, STORE
from tests.service import furnished, start_server

PACKAGES = ("litellm>=1.110,<2", "langchain-openai>=1.7,<2", "openai-agents>=0.24,<1", "anthropic>=2.14,<3")
SUITES = sorted((Path(__file__).parent / "clients").glob("*.py"))


def main() -> int:
    """0 if all suites pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="an interpreter with the clients installed")
    args = parser.parse_args()
    model = Catalogue(load_settings({"storage.data_dir": str(STORE)}, {})).resolve(MODEL).target
    with tempfile.TemporaryDirectory() as folder:
        python = args.python or environment(Path(folder) / "venv")
        server = start_server(furnished(Path(folder) / "data", model))
        try:
            server.http.get("/api/devices", params={"wait_s": 60})
            return max(run(python, suite, server.url) for suite in SUITES)
        finally:
            server.stop()


def environment(folder: Path) -> Path:
    """A new environment with the clients."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def run(python: Path, suite: Path, url: str) -> int:
    """The exit code of one suite."""
    began = time.monotonic()
    environ = {**os.environ, "BASE_URL": f"{url}/v1", "MODEL": MODEL}
    code = subprocess.run([python, suite], env=environ, stdin=subprocess.DEVNULL, check=False).returncode
    print(f"{suite.stem}: {'failed' if code else 'passed'} in {time.monotonic() - began:.1f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
