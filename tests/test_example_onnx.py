"""docs/examples/export_onnx.py: its graph, sent through the API, gives torch's numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.service import ROOT, start_server

EXAMPLES = ROOT / "docs" / "examples"


def ask(url: str, script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, url, "cpu"], capture_output=True, text=True, check=False)


def test_the_example_gives_torch_s_numbers(tmp_path: Path) -> None:
    graph = EXAMPLES / "export_onnx.onnx"
    assert graph.stat().st_size < 100_000
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / graph.name).write_bytes(graph.read_bytes())
    server = start_server(tmp_path / "data")
    try:
        done = ask(server.url, EXAMPLES / "export_onnx.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ran on cpu: ONNX Runtime's record" in done.stdout
        script = tmp_path / "export_onnx.py"  # beside other numbers it must fail
        script.write_text((EXAMPLES / "export_onnx.py").read_text(encoding="utf-8"), encoding="utf-8")
        wrong = np.load(EXAMPLES / "export_onnx.npz")
        np.savez(tmp_path / "export_onnx.npz", pictures=wrong["pictures"][::-1], scores=wrong["scores"])
        assert ask(server.url, script).returncode == 1
    finally:
        assert server.stop() == 0
