"""Devices and health over HTTP: proofs, reasons and remedies, and probing on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import Configuration
from backend.common.types import TERMINAL
from backend.manager import ModelManager
from tests.refusals import refused
from tests.service import Server, start_server, stream_events, wait_for

SHORT = {"prompt": "Say hello.", "options": {"max_tokens": 2}}


def devices(server: Server, wait_s: float = 60) -> dict[str, Any]:
    """The device list."""
    found: dict[str, Any] = server.http.get("/api/devices", params={"wait_s": wait_s}).json()
    return found


def test_the_cpu_is_ready_since_a_child_computed_there(server: Server) -> None:
    found = devices(server)
    cpu = next(device for device in found["devices"] if device["id"] == "cpu")
    assert (cpu["state"], cpu["reason"], cpu["remedy"], cpu["kind"]) == ("ready", None, None, "cpu")
    proof = cpu["proof"]
    assert 0 <= proof["max_abs_error"] <= proof["tolerance"] < 1
    assert proof["operation"] and proof["dtype"] and proof["versions"]["onnxruntime"]
    assert proof["pid"] not in (0, server.process.pid), "a child computed, not the server"
    assert proof["seconds"] > 0
    assert datetime.fromisoformat(proof["at"]).tzinfo
    assert {"llama.cpp", "onnxruntime"} <= set(cpu["engines"]) and {"text", "music"} <= set(cpu["tasks"])
    assert cpu["runtimes"] == ["base"]
    assert cpu["memory_bytes"] > cpu["memory_free_bytes"] > 0
    assert cpu["stage"] in ("runs", "measured")


def test_every_device_is_ready_with_a_proof_or_has_reason_and_remedy(server: Server) -> None:
    for device in devices(server)["devices"]:
        if device["state"] == "ready":
            assert device["proof"] and device["reason"] is None
        else:
            assert device["reason"].endswith(".") and device["remedy"].endswith((".", "?"))


def test_the_default_is_explained_and_the_hardware_listed(server: Server) -> None:
    found = devices(server)
    assert found["default"] == "cpu" and found["default_reason"].endswith(".")
    assert found["probing"] is False
    hardware = next(item for item in found["hardware"] if item["id"] == "cpu:0")
    assert hardware["devices"] == ["cpu"] and hardware["name"]


@pytest.mark.parametrize("wait_s", ["-1", "301", "nan", "inf", "soon", ""])
def test_a_wait_that_cannot_be_is_refused(server: Server, wait_s: str) -> None:
    answer = server.http.get("/api/devices", params={"wait_s": wait_s})
    assert "wait_s" in refused(answer, 422, "validation_error")["detail"]


def test_refresh_proves_again(server: Server) -> None:
    before = devices(server)["devices"][0]["proof"]
    answer = server.http.post("/api/devices/refresh")
    assert answer.status_code == 202
    after = wait_for(lambda: (proof := devices(server)["devices"][0]["proof"]) != before and proof)
    assert after["pid"] != before["pid"] and after["at"] > before["at"]


def test_what_is_loaded_is_listed_with_its_memory_and_work(server: Server) -> None:
    pid = server.generate(prompt="Say hello.", options={"max_tokens": 4})["receipt"]["worker_pid"]

    def loaded() -> list[dict[str, Any]]:
        """That worker; other tests may have left theirs."""
        return [one for one in devices(server, 0)["loaded"] if one["pid"] == pid]

    (one,) = wait_for(lambda: [one for one in loaded() if not one["jobs"]])
    assert (one["device"], one["engine"], one["runtime"]) == ("cpu", "llama.cpp", "base")
    assert one["memory_bytes"] > 90_000_000 and one["cpu_s"] > 0
    server.http.post(f"/api/models/{one['model']}/unload", json={})
    assert wait_for(lambda: not loaded())


def test_refresh_of_one_device_takes_the_same_words_as_a_job(server: Server) -> None:
    before = devices(server)["devices"][0]["proof"]
    assert server.http.post("/api/devices/refresh", json={"device": "CPU:0"}).status_code == 202
    wait_for(lambda: (proof := devices(server)["devices"][0]["proof"]) and proof != before)


def test_refresh_waits_for_the_job_that_runs(server: Server) -> None:
    """A probe beside a running job would measure the job."""
    body = {"prompt": "Write a very long story about a dog.", "options": {"max_tokens": 3000}}
    job_id = server.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"}).json()["id"]
    server.until(job_id, "running")
    before = devices(server, 0)["devices"][0]["proof"]
    server.http.post("/api/devices/refresh")
    wait_for(lambda: len(server.job(job_id)["output"]["text"] or "") > 40)
    found = devices(server, 0)
    assert (found["probing"], found["devices"][0]["proof"]) == (True, before)
    server.http.post(f"/api/jobs/{job_id}/cancel")
    assert wait_for(lambda: devices(server)["devices"][0]["proof"] not in (None, before))


@pytest.mark.parametrize("path", ["/api/devices/refresh", "/api/devices/warp/release"])
@pytest.mark.parametrize("body", [{"device": "warp"}, {"model": 7}, {"devcie": "cpu"}, []])
def test_a_refresh_or_release_that_makes_no_sense_is_refused(server: Server, path: str, body: Any) -> None:
    answer = server.http.post(path, json=body)
    if answer.status_code == 404:
        assert "cpu" in refused(answer, 404, "unknown_device")["valid"]
    else:
        refused(answer, 422, "validation_error")


def test_release_of_an_unknown_device_names_the_known_ones(server: Server) -> None:
    assert "cpu" in refused(server.http.post("/api/devices/warp:9/release"), 404, "unknown_device")["valid"]


def test_release_lets_the_proof_decide(server: Server) -> None:
    before = devices(server)["devices"][0]["proof"]
    assert server.http.post("/api/devices/cpu/release", json={}).status_code == 202
    wait_for(lambda: (proof := devices(server)["devices"][0]["proof"]) and proof != before)


def test_health_has_the_shape_of_the_contract(server: Server) -> None:
    devices(server)
    health = server.http.get("/api/health").json()
    assert health["status"] == "ok" and health["version"] and health["id"] and health["uptime_s"] > 0
    assert set(health["devices"]) == {"ready", "probing", "installable", "unavailable", "broken", "quarantined"}
    assert health["devices"]["ready"] == 1
    assert set(health["jobs"]) == {"queued", "running"}
    assert health["problems"] == []


def test_health_counts_what_runs_and_what_waits(server: Server) -> None:
    body = {"prompt": "Write a very long story about a dog.", "options": {"max_tokens": 3000}}
    made = [
        server.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"}).json()["id"] for _ in range(3)
    ]
    server.until(made[0], "running")
    assert server.http.get("/api/health").json()["jobs"] == {"queued": 2, "running": 1}
    for job_id in reversed(made):
        server.http.post(f"/api/jobs/{job_id}/cancel")
    assert wait_for(lambda: server.http.get("/api/health").json()["jobs"] == {"queued": 0, "running": 0})
    assert {server.job(job_id)["status"] for job_id in made} == {"cancelled"}


def test_a_fresh_server_is_starting_and_a_job_waits_for_the_proof(launch: Callable[..., Server]) -> None:
    server = launch()
    first = server.http.get("/api/health").json()
    cpu = devices(server, 0)["devices"][0]
    assert (first["status"], first["devices"]["probing"]) == ("starting", 1)
    assert cpu["state"] == "probing" and cpu["reason"] and cpu["remedy"]
    job = server.generate(**SHORT, device="cpu", fallback="never")
    assert job["status"] == "done"
    assert server.http.get("/api/health").json()["status"] == "ok"


def test_under_never_a_device_that_turns_out_missing_ends_a_stream_with_an_error_event(
    launch: Callable[..., Server],
) -> None:
    """While the first proofs run, nobody knows yet what is there: the job is accepted and ends by itself."""
    server = launch()
    assert devices(server, 0)["probing"] is True
    events = list(stream_events(server, {**SHORT, "device": "cuda:0", "fallback": "never"}))
    assert [event.event for event in events] == ["queued", "error"]
    problem = events[-1].data
    assert (problem["code"], problem["status"]) == ("device_not_ready", 409)
    assert problem["detail"].endswith(".") and problem["remedy"].endswith(".")
    assert server.job(problem["job_id"])["status"] == "error"
    assert server.job(problem["job_id"])["output"]["text"] is None
    assert server.job(problem["job_id"])["receipt"] is None


def test_a_device_that_the_settings_forbid_is_not_used(data_dir: Path) -> None:
    config = data_dir.parent / "config.yaml"
    config.write_text("devices:\n  cpu:\n    enabled: false\n")
    server = start_server(data_dir, "--config", str(config))
    try:
        cpu = devices(server)["devices"][0]
        assert cpu["state"] == "unavailable" and "devices.cpu.enabled" in cpu["reason"]
        refused(server.http.post("/api/generate", json={**SHORT, "fallback": "never"}), 409, "device_not_ready")
        refused(server.http.post("/api/generate", json=SHORT), 409, "device_not_ready")
        health = server.http.get("/api/health").json()
        (problem,) = health["problems"]
        assert (health["status"], problem["code"]) == ("degraded", "no_device")
        assert "devices.cpu.enabled" in problem["detail"] and "config" in problem["remedy"]
    finally:
        assert server.stop() == 0


def test_auto_is_what_the_settings_say(launch: Callable[..., Server]) -> None:
    server = launch(environ={"TOUCHSTONE_DEVICE": "cuda:1"})
    devices(server)
    for word in ("auto", "AUTO", " Auto"):
        receipt = server.generate(**SHORT, device=word)["receipt"]
        assert (receipt["asked"], receipt["resolved"], receipt["used"]) == (word, "cuda:1", "cpu")


def test_a_device_of_the_settings_that_names_none_is_refused_at_the_start(tmp_path: Path) -> None:
    for word in ("nope", "cuda:99", "cpu:one"):
        with pytest.raises(Configuration, match=f"`device` is '{word}'"):
            ModelManager(load_settings({"storage.data_dir": str(tmp_path), "device": word}, {}))


def test_health_answers_while_everything_else_works(server: Server) -> None:
    """No figure is asserted here beyond what a person would call alive."""
    body = {"prompt": "Write a very long story about a dog.", "options": {"max_tokens": 3000}, "stream": True}
    with (
        httpx.Client(base_url=server.url, timeout=5) as other,
        other.stream("POST", "/api/generate", json=body) as answer,
    ):
        job_id = answer.headers["x-job-id"]
        server.until(job_id, "running")
        for _ in range(50):
            start = time.monotonic()
            assert server.http.get("/api/health").status_code == 200
            assert time.monotonic() - start < 5
    assert server.until(job_id, *TERMINAL)["status"] == "cancelled"
