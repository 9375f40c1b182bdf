"""`bench steps`: errors for what cannot be measured, and rows from the program's figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backend.cli.bench import steps
from backend.common.config.settings import Settings, load_settings
from backend.common.errors import DeviceNotReady, RuntimeFailed, Validation

LINES = """
{"metric": "generate, alone", "value": 20.0, "unit": "tokens/s", "low": 19.0, "high": 21.0}
{"said": "Steps: 399 as a graph."}
{"metric": "as a graph: first token", "value": 5.0, "unit": "ms"}
{"metric": "as a graph: 1 at once", "value": 300.0, "unit": "tokens/s"}
"""


def settings(folder: Path, program: str | None = None) -> Settings:
    """With an interpreter that runs this instead of what it is given."""
    config = folder / "config.yaml"
    config.write_text("{}" if program is None else f"runtimes: {{cuda: {{python: {folder / 'python'}}}}}")
    (folder / "python").write_text(f"#!{sys.executable}\n{program}")
    (folder / "python").chmod(0o755)
    return load_settings({"config": str(config), "storage.data_dir": str(folder / "data")})


@pytest.mark.skipif(sys.platform == "win32", reason="a script with a shebang stands for the interpreter")
def test_the_program_s_figures_become_rows_beside_the_library(tmp_path: Path) -> None:
    told = steps.measure(settings(tmp_path, f"print({LINES!r})"), 1, ["cuda:0"], ["tiny"], 4)
    rows = {row.metric: row for row in told}
    assert len(rows) == 6 and {row.device for row in told} == {"cuda:0"}
    assert (rows["tiny, generate, alone"].low, rows["tiny, as a graph: 1 at once"].ratio) == (19.0, 15.0)
    assert rows["tiny, compiled before, as a graph: first token"].ratio is None


@pytest.mark.skipif(sys.platform == "win32", reason="a script with a shebang stands for the interpreter")
def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailed, match="the card is gone"):
        steps.measure(settings(tmp_path, "raise SystemExit('the card is gone')"), 1, ["cuda:0"], ["tiny"], 4)


@pytest.mark.parametrize(
    ("devices", "shapes", "words"),
    [
        ([], [], "One device"),
        (["cuda:0", "cuda:1"], [], "One device"),
        (["abacus:0"], [], "abacus:0 is not a known device"),
        (["cuda:0"], ["llama-9b"], "llama-9b is not a known shape"),
    ],
)
def test_what_cannot_be_measured_is_refused(devices: list[str], shapes: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(Validation, match=words):
        steps.measure(settings(tmp_path), 1, devices, shapes, None)


def test_without_a_runtime_for_it_a_device_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(DeviceNotReady, match="No installed runtime with torch supports cuda:0"):
        steps.measure(settings(tmp_path), 1, ["cuda:0"], [], None)
