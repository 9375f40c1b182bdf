"""`start`, `status` and `stop`: a background server is found, asked to stop, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service import ROOT, Server, start_server


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data folder"
    verb("stop", tmp_path / "data folder")


def verb(name: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "backend", name, "--data-dir", str(folder), *flags]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_a_server_is_started_found_and_stopped(folder: Path) -> None:
    absent = verb("status", folder)
    assert absent.returncode == 1 and "`python -m backend start` starts one" in absent.stdout
    assert verb("stop", folder).stdout.strip() == "No server runs on this data folder."
    started = verb("start", folder, "--port", "0", "--json")
    assert started.returncode == 0, started.stderr
    said = json.loads(started.stdout)
    assert httpx.get(f"{said['url']}/api/health", trust_env=False).status_code == 200
    status = verb("status", folder)
    assert status.returncode == 0 and said["url"] in status.stdout and "Devices: 1 " in status.stdout
    again = verb("start", folder, "--port", "0")
    assert again.returncode == 0 and "listens already" in again.stdout and said["url"] in again.stdout
    stopped = verb("stop", folder)
    assert (stopped.returncode, stopped.stdout.strip()) == (0, "Stopped.")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{said['url']}/api/health", trust_env=False)
    assert verb("status", folder, "--json").stdout.strip() == "null"
    assert (folder / "logs" / "touchstone.log").exists() and not (folder / "stop").exists()


def test_what_keeps_it_from_starting_is_told(folder: Path, server: Server) -> None:
    taken = server.url.rpartition(":")[2]
    refused = verb("start", folder, "--port", taken)
    assert refused.returncode == 2
    assert f"already runs on port {taken}" in refused.stderr and "--port" in refused.stderr


def test_stop_ends_a_server_on_a_terminal_too_and_no_other(tmp_path: Path) -> None:
    first, second = start_server(tmp_path / "first"), start_server(tmp_path / "second")
    try:
        assert verb("stop", tmp_path / "first").returncode == 0
        assert first.process.wait(timeout=10) == 0
        assert second.http.get("/api/health").status_code == 200
    finally:
        assert second.stop() == 0


def test_a_note_for_a_server_that_is_gone_stops_no_later_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stop").write_text("0123456789abcdef")
    server = start_server(tmp_path / "data")
    assert not (tmp_path / "data" / "stop").exists()
    assert server.http.get("/api/health").status_code == 200
    assert server.stop() == 0


def test_the_log_is_begun_anew_when_it_is_full(tmp_path: Path) -> None:
    program = (
        "import logging\nfrom backend.server import log_format\n"
        "from backend.common.config.settings import load_settings\n"
        "log_format.configure(load_settings({}))\n"
        "for number in range(200): logging.getLogger('a').info('line', extra={'job': number})"
    )
    file = tmp_path / "logs" / "it.log"
    limits = {"TOUCHSTONE_LOG__FILE_BYTES": "2000", "TOUCHSTONE_LOG__FILES": "2", "TOUCHSTONE_LOG__FILE": str(file)}
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, cwd=ROOT, env={**os.environ, **limits}, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    files = sorted(file.parent.iterdir())
    assert [each.name for each in files] == ["it.log", "it.log.1"]
    assert all(0 < each.stat().st_size <= 2000 for each in files)
    assert file.read_text().splitlines()[-1].endswith("job=199")
