"""POST /api/bench on a real server: a job with progress, rows and text, and the order of `auto` after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.cli.main import main
from tests.conftest import MODEL
from tests.refusals import refused
from tests.service import Server, follow

SHORT = {"models": [MODEL], "runs": 1, "streams": 2}


@pytest.fixture(scope="module")
def result(server: Server) -> dict[str, Any]:
    """The Job of a measurement that was waited for."""
    answer = server.http.post("/api/bench", json=SHORT)
    assert answer.status_code == 202 and answer.headers["Location"] == f"/api/jobs/{answer.json()['id']}"
    return server.until(answer.json()["id"], "done", "error", limit_s=170)


def test_the_result_has_the_shape_that_is_promised(result: dict[str, Any]) -> None:
    assert (result["task"], result["status"], result["receipt"]) == ("bench", "done", None)
    found = result["output"]["result"]
    assert set(found) >= {"kind", "machine", "versions", "at", "rows"} and found["kind"] == "devices"
    rows = {row["metric"]: row for row in found["rows"]}
    assert set(rows) >= {"decode", "first token", "prompt", "2 streams", "load", "memory"}
    for row in rows.values():
        assert set(row) >= {"device", "engine", "model", "metric", "value", "unit", "low", "high", "ratio"}
        assert row["value"] > 0 and row["low"] <= row["value"] <= row["high"]
        assert (row["device"], row["engine"], row["model"]) == ("cpu", "llama.cpp", MODEL)
    assert f"| {MODEL} |" in result["output"]["text"] and found["words"][0] in result["output"]["text"]


def test_its_events_tell_how_far_it_is(server: Server, result: dict[str, Any]) -> None:
    events = follow(server, result["id"])
    assert [event.event for event in events if event.event != "progress"] == ["queued", "running", "token", "done"]
    steps = [event.data for event in events if event.event == "progress" and event.data["unit"] == "runs"]
    assert [(step["done"], step["total"]) for step in steps] == [(0, 2), (1, 2)]
    assert steps[0]["phase"] == f"{MODEL} on cpu with llama.cpp"


def test_the_device_has_its_speed_from_then_on_and_auto_says_so(server: Server, result: dict[str, Any]) -> None:
    answer = server.http.get("/api/devices").json()
    [speed] = next(device for device in answer["devices"] if device["id"] == "cpu")["speed"]
    decode = next(row for row in result["output"]["result"]["rows"] if row["metric"] == "decode")
    assert (speed["model"], speed["engine"], speed["value"], speed["unit"]) == (
        MODEL, "llama.cpp", decode["value"], "tokens/s",
    )  # fmt: skip
    assert f"with {MODEL}: {speed['value']:.0f} tokens/s" in answer["default_reason"] or speed["value"] < 10
    assert answer["auto"][MODEL] == {"device": "cpu", "reason": answer["default_reason"]}
    job = server.generate(prompt="Hi.", options={"max_tokens": 1})
    assert job["receipt"]["resolved_reason"] == answer["default_reason"]
    assert "speed" not in [problem["code"] for problem in server.http.get("/api/health").json()["problems"]]


def test_lists_leave_the_result_out_and_the_history_has_it(server: Server, result: dict[str, Any]) -> None:
    [listed] = [job for job in server.http.get("/api/jobs?task=bench").json()["jobs"] if job["id"] == result["id"]]
    assert listed["output"]["result"] is None and listed["output"]["text"] is None
    kept = server.http.get("/api/bench", params={"device": "cpu", "model": MODEL}).json()["measurements"]
    assert kept[-1]["speed"]["model"] == MODEL and kept[-1]["versions"]["xllamacpp"] and kept[-1]["source"] == "asked"
    assert server.http.get("/api/bench?device=cuda:0").json() == {"measurements": []}


def test_the_command_line_goes_through_the_server(
    server: Server, result: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = ["--data-dir", str(server.data_dir)]
    assert main(["bench", "devices", "--history", *where]) == 0
    assert f"| {MODEL} | cpu, llama.cpp |" in capsys.readouterr().out
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result["output"]["result"]))
    assert main(["bench", "devices", "--compare", str(file), str(file)]) == 0
    assert "within the noise" in capsys.readouterr().out
    assert main(["bench", "devices", "--compare", str(file), str(tmp_path / "missing")]) == 1
    assert main(["bench", "devices", "--device", "toaster", *where]) == 1
    assert "names no device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"devices": ["toaster"]}, 404, "unknown_device", "toaster"),
        ({"models": ["nothing"]}, 404, "unknown_model", "nothing"),
        ({"engines": ["steam"]}, 422, "validation_error", "steam"),
        ({"runs": 0}, 422, "validation_error", "runs"),
        ({"streams": 65}, 422, "validation_error", "streams"),
        ({"device": ["cpu"]}, 422, "validation_error", "devices"),
        ({"devices": "cpu"}, 422, "validation_error", "devices"),
        ({"devices": ["gpu"]}, 409, "device_not_ready", "gpu"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    server: Server, body: dict[str, Any], status: int, code: str, words: str
) -> None:
    problem = refused(server.http.post("/api/bench", json=body), status, code)
    assert words in problem["detail"] + problem["remedy"]


def test_a_device_that_is_not_ready_is_said_in_the_end(server: Server) -> None:
    job = server.http.post("/api/bench", json={**SHORT, "devices": ["cuda:0"]}).json()
    ended = server.until(job["id"], "done", "error")
    assert ended["error"]["code"] == "device_not_ready" and "cuda:0 is unavailable" in ended["error"]["detail"]


def test_a_cancel_ends_it_within_a_step_and_nothing_is_kept(server: Server, result: dict[str, Any]) -> None:
    before = server.http.get("/api/bench").json()
    job = server.http.post("/api/bench", json={**SHORT, "runs": 50}).json()
    again = server.http.post("/api/bench", json={**SHORT, "runs": 50}).json()
    assert again["id"] == job["id"], "the very same is joined"
    server.until(job["id"], "running")
    assert server.http.post(f"/api/jobs/{job['id']}/cancel").status_code == 202
    assert server.until(job["id"], "cancelled", "done", "error", limit_s=30)["status"] == "cancelled"
    assert server.http.get("/api/bench").json() == before


def test_measurements_outlive_a_restart(launch: Callable[..., Server], server: Server, result: dict[str, Any]) -> None:
    kept = (server.data_dir / "measurements.json").read_bytes()
    first = launch()
    (first.data_dir / "measurements.json").write_bytes(kept)
    first.stop()
    second = launch()
    second.http.get("/api/devices?wait_s=60")
    devices = second.http.get("/api/devices").json()["devices"]
    assert [speed["model"] for device in devices for speed in device["speed"]] == [MODEL]
