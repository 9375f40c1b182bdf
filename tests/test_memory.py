"""Memory on a real server: a kill by the kernel, out_of_memory with numbers, several models, slots."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL
from tests.service import Server, stream_events, wait_for

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
STORY = "Write a very long story about a dog."
MIB = 1024 * 1024


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of 700 MiB, where this process may make one."""
    version_1, version_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    folder = (version_1 if version_1.exists() else version_2) / f"touchstone-memory-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if version_1.exists() else "memory.max")).write_text(str(700 * MIB))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield folder
    wait_for(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_a_worker_that_the_kernel_ends_is_told_with_advice_and_replaced(
    launch: Callable[..., Server], cgroup: Path
) -> None:
    server = launch()
    worker = server.generate(prompt="Hi", options={"max_tokens": 1})["receipt"]["worker_pid"]
    body = {"prompt": STORY, "options": {"max_tokens": 2000, "temperature": 0}, "fallback": "never"}
    events = stream_events(server, body)
    next(event for event in events if event.event == "token")
    (cgroup / "cgroup.procs").write_text(str(worker))
    Path(f"/proc/{worker}/oom_score_adj").write_text("1000")
    moved = time.monotonic()  # the server notes the worker's cgroup with each sign of life, one a second
    while time.monotonic() < moved + 2:
        next(event for event in events if event.event == "token")
    hog = (
        f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write(str(__import__('os').getpid())); b = bytearray({800 * MIB})"
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", hog], timeout=20, check=False)
    last = list(events)[-1]
    assert last.event == "error" and last.data["code"] == "out_of_memory", last.data
    assert "memory limit of its cgroup" in last.data["detail"] and "MB" in last.data["detail"] and last.data["remedy"]
    again = server.generate(prompt="Hi", options={"max_tokens": 1})
    assert again["status"] == "done" and again["receipt"]["worker_pid"] != worker


def test_a_model_that_cannot_fit_is_refused_with_numbers_and_the_loaded_one_stays(
    launch: Callable[..., Server], data_dir: Path
) -> None:
    config = data_dir.parent / "config.yaml"
    config.write_text(f"models: {{tiny: {{path: '{TINY}'}}}}\ndevices: {{cpu: {{memory_limit: 200MB}}}}\n")
    server = launch("--config", str(config))
    small = server.generate(model="tiny", prompt="abc", options={"max_tokens": 2})
    assert small["status"] == "done"
    answer = server.http.post("/api/generate", json={"model": MODEL, "prompt": "Hi"})
    problem = answer.json()
    assert answer.status_code == 507 and problem["code"] == "out_of_memory" and "needs about" in problem["detail"]
    again = server.generate(model="tiny", prompt="abc", options={"max_tokens": 2})
    assert again["receipt"]["worker_pid"] == small["receipt"]["worker_pid"], "a failed load unloads nothing"


def test_models_live_beside_each_other_and_unloading_gives_the_memory_back(
    launch: Callable[..., Server], data_dir: Path
) -> None:
    config = data_dir.parent / "config.yaml"
    config.write_text(f"models: {{tiny: {{path: '{TINY}'}}}}\npreload: [tiny]\n")
    server = launch("--config", str(config))
    preloaded = wait_for(lambda: server.http.get("/api/jobs", params={"task": "load", "status": "done"}).json()["jobs"])
    pid = preloaded[0]["receipt"]["worker_pid"]
    server.generate(prompt="Hi", options={"max_tokens": 1})
    small = server.generate(model="tiny", prompt="abc", options={"max_tokens": 1})
    assert small["receipt"]["worker_pid"] == pid and small["receipt"]["times"]["load_s"] == 0
    job = server.until(server.http.post("/api/models/tiny/unload").json()["id"], "done")
    memory = job["receipt"]["memory"]
    assert memory["before_bytes"] > 1_000_000 and memory["after_bytes"] == 0
    assert not Path(f"/proc/{pid}").exists()
    large = server.generate(prompt="Hi", options={"max_tokens": 1})
    assert large["receipt"]["times"]["load_s"] == 0, "the other model stayed"


@pytest.fixture
def shared(launch: Callable[..., Server]) -> Server:
    """A server whose models run as many jobs at once as the memory holds."""
    return launch(environ={"TOUCHSTONE_TEXT__SLOTS": "auto", "TOUCHSTONE_TEXT__CONTEXT_TOKENS": "1024"})


def at_once(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sends requests at the same time and returns their answers in order."""
    answers: list[dict[str, Any]] = [{}] * len(bodies)

    def ask(number: int) -> None:
        answers[number] = server.http.post("/api/generate", json=bodies[number]).json()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_jobs_of_one_model_share_a_worker_and_nobody_sees_another_s_text(shared: Server) -> None:
    words = ["red", "blue", "seven"]
    bodies = [
        {"prompt": f"Say the word {word} and nothing else.", "options": {"max_tokens": 40, "temperature": 0}}
        for word in words
    ]
    alone = [shared.generate(**body)["output"]["text"] for body in bodies]
    together = at_once(shared, bodies)
    assert {job["receipt"]["worker_pid"] for job in together} == {together[0]["receipt"]["worker_pid"]}
    assert any(job["receipt"]["batched"] for job in together)
    receipt = together[0]["receipt"]
    assert receipt["slots"] == 4 and receipt["context_tokens"] == 1024
    assert receipt["fit"]["devices"][0]["layers"] == receipt["fit"]["layers"] == 31
    for single, job in zip(alone, together, strict=True):
        assert job["status"] == "done" and job["output"]["text"][:8] == single[:8]


def test_a_cancel_ends_its_own_slot_alone(shared: Server) -> None:
    body: dict[str, Any] = {"prompt": STORY, "options": {"max_tokens": 120, "temperature": 0, "seed": 1}}
    other = threading.Thread(target=lambda: answers.append(shared.generate(**body)))
    answers: list[dict[str, Any]] = []
    shared.generate(prompt="Hi", options={"max_tokens": 1})
    other.start()
    events = stream_events(shared, {"prompt": STORY, "options": {"max_tokens": 500, "temperature": 0}})
    job_id = next(event for event in events if event.event == "token").data["job_id"]
    shared.http.post(f"/api/jobs/{job_id}/cancel")
    assert list(events)[-1].event == "cancelled"
    other.join()
    assert answers[0]["status"] == "done" and answers[0]["receipt"]["counts"]["tokens"] == 120


def test_a_crash_fails_every_job_in_it_and_the_next_one_works(shared: Server) -> None:
    worker = shared.generate(prompt="Hi", options={"max_tokens": 1})["receipt"]["worker_pid"]
    streams = [stream_events(shared, {"prompt": STORY, "options": {"max_tokens": 900}}) for _ in range(2)]
    for stream in streams:
        next(event for event in stream if event.event == "token")
    os.kill(worker, 9)
    assert [list(stream)[-1].data["code"] for stream in streams] == ["worker_crashed"] * 2
    assert shared.generate(prompt="Hi", options={"max_tokens": 1})["status"] == "done"
