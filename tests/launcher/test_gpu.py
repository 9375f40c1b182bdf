"""The question before a download of gigabytes at a terminal, and the stored answer."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service import ROOT

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of POSIX", allow_module_level=True)

CODE = """
import sys
from pathlib import Path
from backend.cli.launcher.gpu_runtime import _best
print(_best(sys.argv[1], True, Path(sys.argv[2])))
"""


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        best = {"best": "cuda", "best_reason": "A card is here (2.8 GB to fetch)."}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(best if self.path == "/api/runtimes" else {}).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("answer", "name", "remembered"),
    [("y", "cuda", False), ("no", "None", True), ("", "None", False)],
)
def test_a_terminal_is_asked(url: str, tmp_path: Path, answer: str, name: str, remembered: bool) -> None:
    ours, theirs = os.openpty()
    memory = tmp_path / "gpu"
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, url, str(memory)],
        cwd=ROOT,
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    said, _ = process.communicate(timeout=60)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert said.strip() == name and memory.exists() is remembered
    assert "A card is here (2.8 GB to fetch)." in shown and "Install cuda now" in shown
