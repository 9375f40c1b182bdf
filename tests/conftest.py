"""Fixtures: a real server on a free port with the default model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.common.config.settings import load_settings
from backend.models import Catalogue
from tests.service import ROOT, Server, furnished, start_server

# Where the tests run behind a shell's `&`, Ctrl-C is ignored, and so it would be by every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

STORE = ROOT / ".test-data"  # keeps the model between runs
MODEL = "smollm2-135m-instruct"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check that no two tests share an id: a run in several processes would run one of them and drop the others."""
    shared = [nodeid for nodeid, count in Counter(item.nodeid for item in items).items() if count > 1]
    if shared:
        raise pytest.UsageError(f"Several tests have the id {shared[0]}. Only one of them would run in parallel.")


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The default model's file, fetched once."""
    settings = load_settings({"storage.data_dir": str(STORE)}, {})
    entry = Catalogue(settings).resolve(MODEL)
    if entry.path is None:
        environ = {**os.environ, "TOUCHSTONE_DATA_DIR": str(STORE)}
        subprocess.run([sys.executable, "-m", "backend", "models", "fetch-default"], cwd=ROOT, env=environ, check=True)
    return entry.target


@pytest.fixture
def data_dir(tmp_path: Path, model_file: Path) -> Path:
    """A new data folder that holds the model."""
    return furnished(tmp_path / "data", model_file)


@pytest.fixture
def launch(data_dir: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers on the test's data folder; those that still run are stopped at the end."""
    started: list[Server] = []

    def begin(*flags: str, environ: dict[str, str] | None = None) -> Server:
        server = start_server(data_dir, *flags, environ=environ)
        started.append(server)
        return server

    yield begin
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[Server]:
    """One server for all tests that do not harm it; its CPU is ready."""
    running = start_server(furnished(tmp_path_factory.mktemp("shared") / "data", model_file))
    running.http.get("/api/devices", params={"wait_s": 60})
    yield running
    assert running.stop() == 0
