"""The verb `doctor`: exit codes, with and without a server, on broken folders and environments."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.test_packages import environment as environment
from tests.doctor.test_packages import flavour
from tests.service import ROOT, Server


def doctor(*words: str, data_dir: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m backend doctor …`."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    return subprocess.run(
        [sys.executable, "-m", "backend", "doctor", *words],
        cwd=ROOT,
        env={**variables, "TOUCHSTONE_DATA_DIR": str(data_dir), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def examined(*words: str, data_dir: Path, code: int = 3, **environ: str) -> Any:
    """The document, after the exit code was seen to be the one told in it."""
    ended = doctor("--json", *words, data_dir=data_dir, **environ)
    assert (ended.returncode, ended.stderr) == (code, ""), ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert found["verdict"]["exit_code"] == code
    return found


def codes(found: Any) -> set[str]:
    """The codes of the findings."""
    return {finding["code"] for finding in found["findings"]}


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody else has."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_without_a_server_it_probes_and_leaves_the_folder_as_it_is(tmp_path: Path, taken_port: int) -> None:
    folder = tmp_path / "data"
    found = examined(data_dir=folder, TOUCHSTONE_PORT=str(taken_port), CUDA_VISIBLE_DEVICES="7", HF_TOKEN="tooth-fairy")
    assert found["devices"][0]["state"] == "ready" and found["server"]["url"] is None
    assert {"model-missing", "port-taken"} <= codes(found) and found["server"]["free_port"] != taken_port
    assert found["variables"]["CUDA_VISIBLE_DEVICES"] == "7" and "tooth-fairy" not in json.dumps(found)
    assert found["settings"]["server.port"] == taken_port
    assert found["system"]["release"] == os.uname().release and found["system"]["groups"]
    assert not folder.exists()


def test_a_card_that_is_not_there_is_answered_in_three_lines(server: Server) -> None:
    ended = doctor("--missing", "Radeon RX 6800", data_dir=server.data_dir)
    lines = ended.stdout.splitlines()
    assert lines[:2] == ["Why is my device missing? (1)", "  Radeon RX 6800"], ended.stdout + ended.stderr
    assert [line.split(":")[0].strip() for line in lines[2:]] == ["Bus", "Driver", "Runtimes", "First"]


def test_the_running_server_is_asked(server: Server) -> None:
    found = examined(data_dir=server.data_dir)
    proved = server.http.get("/api/devices").json()["devices"][0]["proof"]
    assert found["devices"][0]["proof"] == proved, "the server's own proof, not a new one"
    assert found["server"]["url"] == server.url
    assert found["models"][0]["state"] == "ready"
    assert not {"held", "port-taken", "devices-unknown"} & codes(found)


def test_a_server_that_refuses_or_says_nothing_is_told_and_probes_are_made_from_here(
    launch: Callable[..., Server],
) -> None:
    server = launch(environ={"TOUCHSTONE_TOKEN": "the-real-token"})
    refused = examined(data_dir=server.data_dir, TOUCHSTONE_TOKEN="another-token")
    assert "devices-unknown" in codes(refused) and refused["devices"][0]["state"] == "ready"
    assert "another-token" not in json.dumps(refused)
    server.process.send_signal(signal.SIGSTOP)
    try:
        silent = examined(data_dir=server.data_dir)
    finally:
        server.process.send_signal(signal.SIGCONT)
    held = next(finding for finding in silent["findings"] if finding["code"] == "held")
    assert str(server.process.pid) in held["detail"] and server.url in held["detail"]
    assert silent["devices"][0]["state"] == "ready"


def test_whatever_is_broken_is_told_in_one_go(tmp_path: Path, environment: Path) -> None:
    """A damaged history, a short model, and runtimes: one of the user's spoilt, one not there, an installed one."""
    folder = tmp_path / "data"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    (folder / "jobs.sqlite3").write_bytes(b"not a database " * 500)
    flavour(environment, "onnxruntime", "1.32.0")
    flavour(environment, "onnxruntime-gpu", "1.31.1")
    python = environment.parents[2] / "bin" / "python"
    made = folder / "runtimes" / "openvino" / "1"
    made.mkdir(parents=True)
    made.with_name("current").write_text('{"current": "1"}')
    manifest = {"version": "1", "python": str(python), "packages": {}, "bytes": 1, "at": "2026-01-01T00:00:00Z"}
    (made / "touchstone.json").write_text(json.dumps(manifest))
    config = tmp_path / "config.yaml"
    config.write_text(f"runtimes:\n  mine: {{python: {json.dumps(str(python))}}}\n  gone: {{python: none/python}}\n")
    found = examined("--config", str(config), data_dir=folder)
    assert {
        ("history", "storage"),
        ("model-broken", "model:smollm2-135m-instruct"),
        ("two-flavours", "runtime:mine"),
        ("two-flavours", "runtime:openvino"),
        ("no-interpreter", "runtime:gone"),
    } <= {(finding["code"], finding["subject"]) for finding in found["findings"]}
    assert [runtime["name"] for runtime in found["runtimes"]] == ["base", "openvino", "mine", "gone"]
    kept = next(one for one in found["findings"] if one["subject"] == "runtime:openvino")
    assert [step["command"].split()[-3:] for step in kept["steps"]] == [
        ["runtimes", "remove", "openvino"],
        ["runtimes", "install", "openvino"],
    ]
    assert re.fullmatch(r"Only the CPU works.*\d of the findings above need a fix\.", found["verdict"]["sentence"])


def test_a_folder_that_cannot_be_one_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    found = examined(data_dir=tmp_path / "data", code=1)
    assert found["findings"][0]["code"] == "data-folder" and "keeps it from working" in found["verdict"]["sentence"]


def test_a_configuration_that_cannot_be_ends_with_2(tmp_path: Path) -> None:
    ended = doctor(data_dir=tmp_path, TOUCHSTONE_PROT="1")
    assert (ended.returncode, ended.stdout) == (2, "") and "TOUCHSTONE_PORT" in ended.stderr
