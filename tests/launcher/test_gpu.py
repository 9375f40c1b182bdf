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

from backend.cli.launcher.model_offer import _chosen
from tests.service import ROOT

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of POSIX", allow_module_level=True)

CODE = """
import sys
from pathlib import Path
from backend.cli.launcher.{} import {} as choose
print(choose(sys.argv[1], True, Path(sys.argv[2])))
"""
MODEL = {
    "model": "some-3b",
    "name": "Some 3B",
    "state": "downloadable",
    "bytes": 2_147_023_008,
    "download_s": 172,
    "licence": "Apache-2.0",
    "reason": "Chosen for 8.6 GB of memory (cpu).",
    "offer": True,
}
OFFER = "Some 3B, 2.1 GB, 3 min at 100 Mbit/s, licence Apache-2.0. Chosen for 8.6 GB of memory (cpu)."


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/api/runtimes": {"best": "cuda", "best_reason": "A card is here (2.8 GB to fetch)."},
            "/api/models": {"models": [], "recommended": MODEL},
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path, {})).encode())

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
    ("chooser", "answer", "name", "remembered"),
    [
        (("gpu_runtime", "_best"), "y", "cuda", False),
        (("gpu_runtime", "_best"), "no", "None", True),
        (("gpu_runtime", "_best"), "", "None", False),
        (("model_offer", "_chosen"), "yes", "some-3b", False),
        (("model_offer", "_chosen"), "n", "None", True),
        (("model_offer", "_chosen"), "later", "None", False),
    ],
)
def test_a_terminal_is_asked(
    url: str, tmp_path: Path, chooser: tuple[str, str], answer: str, name: str, remembered: bool
) -> None:
    ours, theirs = os.openpty()
    memory = tmp_path / "declined"
    process = subprocess.Popen(
        [sys.executable, "-c", CODE.format(*chooser), url, str(memory)],
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
    if chooser[0] == "gpu_runtime":
        assert "A card is here (2.8 GB to fetch)." in shown and "Install cuda now" in shown
    else:
        assert OFFER in shown and "Download some-3b now, while the server runs? [y/N]" in shown


@pytest.mark.parametrize(
    ("change", "must_ask", "name"),
    [
        ({}, False, "some-3b"),
        ({"offer": False}, True, None),
        ({"offer": False}, False, "some-3b"),
        ({"state": "ready"}, False, None),
        ({"state": "downloading"}, True, None),
        ({}, True, None),
    ],
)
def test_a_model_is_offered_while_only_the_test_model_is_here(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    must_ask: bool,
    name: str | None,
) -> None:
    monkeypatch.setitem(globals(), "MODEL", MODEL | change)
    monkeypatch.setattr(sys, "stdin", None)
    assert _chosen(url, must_ask, tmp_path / "declined") == name
    hint = "start with --model auto; --model none turns this hint off." in capsys.readouterr().err
    assert hint is (must_ask and not change), "without a terminal, the hint is printed"
    assert not (tmp_path / "declined").exists()
