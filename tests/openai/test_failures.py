"""Worker failures for clients of the OpenAI-compatible API: a status before the stream, then an error chunk.

Children that play faults stand for the devices.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.common.config.settings import load_settings
from backend.common.types import Device
from backend.manager import ModelManager
from backend.scheduling import worker_pool
from backend.server.app import create_app
from backend.server.v1 import request_translation
from tests.faulty import faulty
from tests.openai.asking import HELLO, chunks, refused
from tests.openai.conftest import TINY

CARD = Device(
    "vulkan:0", "A card", "vulkan", "gpu", "ready", "runs", ["base"], hardware_id="pci:0000:01:00.0",
    tasks=["text"], engines=["llama.cpp"], served_by={"base": ["llama.cpp"]},
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_extra_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a load on a card no more time than the settings: a silent one lasts for all of it."""
    monkeypatch.setattr(worker_pool, "CHECK_S", 0.0)


def ask(tmp_path: Path, *faults: str, **more: Any) -> tuple[httpx.Response, list[dict[str, Any]]]:
    """One chat request to a service whose n-th worker plays the n-th fault; the answer, and all jobs at the end."""
    left = list(faults)

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return faulty(left.pop(0) if arguments[0] == "run" else "ok")(python, arguments)

    async def play() -> tuple[httpx.Response, list[dict[str, Any]]]:
        config = tmp_path / "config.yaml"
        config.write_text(f"models: {{tiny: {{path: '{TINY}'}}}}\n")
        limits = {f"supervision.{name}": 0.6 for name in ("silence_s", "step_s")} | {"supervision.load_s": 2}
        manager = ModelManager(load_settings({"config": str(config), **limits}, {}), spawn)
        await manager.start()
        try:
            await manager.probes.wait_until_idle()
            manager.probes.devices[CARD.id] = CARD
            transport = httpx.ASGITransport(create_app(manager), client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                body = {"model": "tiny", "messages": HELLO, "device": "vulkan:0", **more}
                answer = await http.post("/v1/chat/completions", json=body, timeout=30)
                for job in list(manager.registry.live.values()):
                    await job.ended.wait()
                return answer, (await http.get("/api/jobs")).json()["jobs"]
        finally:
            await manager.stop()

    return asyncio.run(play())


def cut_stream(answer: httpx.Response) -> dict[str, Any]:
    """The error of a stream that began well: it is the last chunk, and nothing says that the text was whole."""
    assert answer.status_code == 200
    *lines, last = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert lines and last != "[DONE]"
    assert all(json.loads(line)["choices"][0]["finish_reason"] is None for line in lines)
    body = json.loads(last)
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "code", "param"}
    error: dict[str, Any] = body["error"]
    return error


def test_a_sound_stream_for_comparison(tmp_path: Path) -> None:
    answer, (job,) = ask(tmp_path, "ok", stream=True)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(answer))
    assert (text, answer.headers["x-device-used"], job["status"]) == ("xxxxx", "vulkan:0", "done")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("dies_loading", 502, "worker_crashed"),
        ("silent_loading", 504, "worker_hung"),
        ("no_memory", 507, "out_of_memory"),
    ],
)
def test_what_fails_before_the_first_token_has_its_status(
    tmp_path: Path, fault: str, status: int, code: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_translation, "HEADERS_S", 600)
    answer, (job,) = ask(tmp_path, fault, fallback="never", stream=stream)
    assert refused(answer, status, code)["type"] == "server_error"
    assert answer.headers["x-job-id"] == job["id"] and job["status"] == "error"
    assert (answer.headers["x-device-asked"], answer.headers["x-device-used"]) == ("vulkan:0", "unknown")


def test_a_stream_that_waits_sends_its_headers_and_fails_with_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_translation, "HEADERS_S", 0.0)
    monkeypatch.setattr(request_translation, "PING_S", 0.02)
    answer, (job,) = ask(tmp_path, "dies_loading", fallback="never", stream=True)
    assert cut_stream(answer)["code"] == "worker_crashed" == job["error"]["code"]
    assert answer.headers["x-device-used"] == "unknown" and "\n: \n\n" in answer.text


@pytest.mark.parametrize(("fault", "code"), [("dies_running", "worker_crashed"), ("stuck", "worker_hung")])
def test_what_fails_in_a_stream_ends_it_with_an_error_and_without_done(tmp_path: Path, fault: str, code: str) -> None:
    answer, (job,) = ask(tmp_path, fault, stream=True)
    assert cut_stream(answer)["code"] == code == job["error"]["code"]
    answer, _ = ask(tmp_path, fault)
    assert answer.json()["error"]["code"] == code, "a request that waits gets the status"


def test_after_the_first_token_nothing_begins_anew_on_another_device(tmp_path: Path) -> None:
    answer, (job,) = ask(tmp_path, "device_lost", "ok", stream=True, fallback="cpu")
    error = cut_stream(answer)
    assert error["code"] == "device_lost" and "vulkan:0" in error["message"]
    assert job["status"] in ("cancelled", "done"), "nobody waits for it any more"


def test_a_request_that_waits_gets_the_text_of_the_device_that_made_it(tmp_path: Path) -> None:
    answer, (job,) = ask(tmp_path, "device_lost", "ok", fallback="cpu")
    found = answer.json()
    assert found["choices"][0]["message"]["content"] == "xxxxx"
    assert (answer.headers["x-device-used"], found["receipt"]["fell_back"]) == ("cpu", True)
    assert job["status"] == "done"


def test_one_failing_choice_fails_the_request_and_cancels_the_others(tmp_path: Path) -> None:
    answer, jobs = ask(tmp_path, "dies_running", "ok", "ok", n=3, fallback="never")
    assert refused(answer, 502, "worker_crashed")
    assert len(jobs) == 3
    assert {job["status"] for job in jobs} <= {"error", "cancelled", "done"}
    assert sum(job["status"] == "error" for job in jobs) == 1


def test_without_evidence_the_device_is_unknown(tmp_path: Path) -> None:
    answer, _ = ask(tmp_path, "no_evidence")
    assert answer.headers["x-device-used"] == "unknown" and answer.json()["receipt"]["used"] is None
