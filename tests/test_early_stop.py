"""A stop before the server is ready: exit code 0, and no process or file remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service import ROOT, wait_for


def start(data_dir: Path, log: Path) -> subprocess.Popen[bytes]:
    """`serve`, whose interpreter tells each import on stderr."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    words = ["serve", "--port", "0", "--data-dir", str(data_dir)]
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "backend", *words],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "begun",
    [
        lambda data_dir, log: b"pydantic" in log.read_bytes(),
        lambda data_dir, log: b"uvicorn" in log.read_bytes(),
        lambda data_dir, log: (data_dir / "lock").exists(),
    ],
    ids=["at the first imports", "at the last imports", "while it starts"],
)
def test_a_stop_before_the_first_line_ends_with_0(
    tmp_path: Path, begun: Callable[[Path, Path], bool], number: signal.Signals
) -> None:
    data_dir, log = tmp_path / "data", tmp_path / "log"
    process = start(data_dir, log)
    try:
        wait_for(lambda: begun(data_dir, log))
        process.send_signal(number)
        assert process.wait(30) == 0, log.read_text()[-2000:]
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text() and not (data_dir / "server.json").exists()
