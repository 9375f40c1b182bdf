"""Receipts through a running server: what a job's receipt may claim, with true and lying workers.

One server serves all of these stacks. The processor is real; the workers of two cards are scripted, and the name of the
model chooses what its worker does.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from backend.common.formats.onnx.writer import Node, Outside, Value, Weight
from backend.common.formats.onnx.writer import write as write_onnx
from tests.faulty_stacks.stack import Stack
from tests.service import ROOT, wait_for
from tests.test_safetensors import CONFIG, WEIGHTS

TINY = ROOT / "tests" / "cases" / "gguf" / "tiny_no_template.gguf"
NAMES = (
    "half below passed-off contradiction silent leaves leaves-partly vanishes first-only dies-loading dies-early"
    " dies-late no-memory changes changes-once slow slow-load lost renamed written restored linked deleted plain"
).split()
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Receipt = dict[str, Any]


class Service:
    """The server, its models and a client."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        self.models.mkdir()
        paths = {name: self.models / f"{name}.gguf" for name in NAMES}
        for path in paths.values():
            shutil.copy(TINY, path)
        paths["shards"] = write_checkpoint(self.models / "shards")
        paths["graph"] = self.models / "graph.onnx"
        paths["graph"].write_bytes(graph())
        self.weights(2.0)
        python = folder / "cards-python"
        python.symlink_to(sys.executable)
        config = {
            "models": {name: {"path": str(path)} for name, path in paths.items()},
            "runtimes": {"cards": {"python": str(python)}},
            "default_models": {"text": "plain"},
            "storage": {"data_dir": str(folder / "data")},
        }
        (folder / "config.json").write_text(json.dumps(config))  # JSON is also YAML
        arguments = ["-m", "tests.faulty_stacks.service", str(folder / "config.json"), str(python)]
        with (folder / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert " listening on " in line, (folder / "server.log").read_text()
        self.http = httpx.Client(base_url=line.split()[-1], timeout=60, trust_env=False)
        listed = self.http.get("/api/devices", params={"wait_s": 60}).json()["devices"]
        states = {device["id"]: (device["state"], device["reason"]) for device in listed}
        assert [states.get(name, (None,))[0] for name in ("cpu", "cuda:0", "cuda:1")] == ["ready"] * 3, states

    def weights(self, value: float) -> None:
        """Write the external data of the graph, which multiplies its input by `value`."""
        (self.models / "w.bin").write_bytes(struct.pack("<f", value))

    def path(self, model: str) -> Path:
        """Return the file of a model."""
        return self.models / f"{model}.gguf"

    def run(self, model: str, device: str = "cuda:0", fallback: str = "never", **more: Any) -> dict[str, Any]:
        """Run a job and return it, ended in whatever way."""
        body = {"model": model, "device": device, "fallback": fallback, **({"prompt": "Hi"} | more)}
        answer = self.http.post("/api/generate", json=body).json()
        job: dict[str, Any] = answer.get("job", answer)
        assert job.get("receipt") is None or "evidence" in (job["receipt"]["placement"] or {"evidence": ""}), answer
        return job

    def begin(self, model: str, device: str = "cuda:0") -> str:
        """Start a job and return its id."""
        body = {"model": model, "device": device, "fallback": "never", "prompt": "Hi"}
        answer = self.http.post("/api/generate", json=body, headers={"Prefer": "respond-async"})
        return str(answer.json()["id"])

    def job(self, id_: str) -> dict[str, Any]:
        """Return a job."""
        job: dict[str, Any] = self.http.get(f"/api/jobs/{id_}").json()
        return job

    def until(self, id_: str, *statuses: str) -> dict[str, Any]:
        """Wait for a job to be in one of these states."""
        job: dict[str, Any] = wait_for(lambda: (found := self.job(id_))["status"] in statuses and found)
        return job

    def stop(self) -> None:
        """End the server."""
        self.http.close()
        self._process.terminate()
        self._process.wait(20)


@cache
def service() -> Service:
    """Start the server for all stacks of this module."""
    folder = Path(tempfile.mkdtemp(prefix="touchstone-receipts-"))
    started = Service(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(started.stop)
    return started


def write_checkpoint(folder: Path) -> Path:
    """Write a folder of safetensors in two files."""
    folder.mkdir()
    texts = {
        "config.json": CONFIG,
        "tokenizer.json": {},
        "model.safetensors.index.json": {"weight_map": dict(zip("ab", SHARDS, strict=True))},
    }
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content))
    for name in SHARDS:
        (folder / name).write_bytes(WEIGHTS)
    return folder


def graph() -> bytes:
    """Return a graph that multiplies its input by a number in an external file."""
    outside = Outside("w.bin", 0, 4)
    node = Node("Mul", ["x", "w"], ["y"])
    ends = [Value(name, "float32", [1]) for name in "xy"]
    return write_onnx("scale", [node], ends[:1], ends[1:], [Weight("w", "float32", [1], outside)])


def changed(path: Path) -> bytes:
    """Return the content of a file with another last byte."""
    content = path.read_bytes()
    return content[:-1] + bytes([content[-1] ^ 1])


def sha256(path: Path) -> str:
    """Return the digest of a small file as receipts have it."""
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def replaced_warm(model: str, replace: Callable[[Path], None], device: str) -> None:
    """Check that the job after a replacement runs with the new file, and that each receipt names its own."""
    path = service().path(model)
    first, before = service().run(model, device), sha256(path)
    again = service().run(model, device)
    replace(path)
    second, after = service().run(model, device), sha256(path)
    receipts: list[Receipt] = [job["receipt"] for job in (first, again, second)]
    assert [job["status"] for job in (first, again, second)] == ["done"] * 3, second["error"]
    assert [receipt["model_stamp"]["digest"] for receipt in receipts] == [before, before, after] and before != after
    pids = [receipt["worker_pid"] for receipt in receipts]
    assert pids[0] == pids[1] != pids[2], "an unchanged model stays loaded, a changed one does not"
    assert {receipt["model_file"] for receipt in receipts} == {path.name}
    assert receipts[2]["model_stamp"]["bytes"] == path.stat().st_size


def rename(path: Path) -> None:
    """Move another file over a file, with its size and time."""
    facts, other = path.stat(), path.with_suffix(".new")
    other.write_bytes(changed(path))
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(path)


def write(path: Path) -> None:
    """Write into a file."""
    path.write_bytes(changed(path))


def restore_time(path: Path) -> None:
    """Write into a file and set its old time."""
    facts = path.stat()
    path.write_bytes(changed(path))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def switch_link(path: Path) -> None:
    """Let a link lead to another file."""
    other = path.with_name("target.bin")
    other.write_bytes(changed(path))
    path.unlink()
    path.symlink_to(other)


def renamed_on_the_processor(folder: Path) -> None:
    replaced_warm("renamed", rename, "cpu")


def renamed_on_a_card(folder: Path) -> None:
    replaced_warm("renamed", rename, "cuda:0")


def written_in_place(folder: Path) -> None:
    replaced_warm("written", write, "cuda:0")


def written_with_the_old_time(folder: Path) -> None:
    replaced_warm("restored", restore_time, "cuda:0")


def link_switched(folder: Path) -> None:
    replaced_warm("linked", switch_link, "cuda:0")


def shard_replaced(folder: Path) -> None:
    shard = service().models / "shards" / SHARDS[1]
    first = service().run("shards")["receipt"]
    rename(shard)
    second = service().run("shards")["receipt"]
    assert first["model_stamp"]["digest"].startswith("sha256-listed:")
    assert first["model_stamp"]["digest"] != second["model_stamp"]["digest"]
    assert first["worker_pid"] != second["worker_pid"] and first["model_file"] == "shards"
    assert first["model_stamp"]["bytes"] == sum(file.stat().st_size for file in shard.parent.iterdir())


def external_data_replaced(folder: Path) -> None:
    results = []
    for value in (2.0, 2.0, 3.0):
        if value == 3.0:
            service().weights(value)
        job = service().run("graph", "cpu", task="onnx", prompt=None, inputs={"x": [5.0]}, options={"outputs": "json"})
        results.append((json.loads(job["output"]["text"])["y"], job["receipt"]))
    assert [result for result, _ in results] == [[10.0], [10.0], [15.0]]
    digests = [receipt["model_stamp"]["digest"] for _, receipt in results]
    assert digests[0] == digests[1] != digests[2]
    assert results[2][1]["used"] == "cpu" and "The same at the end" in results[2][1]["placement"]["evidence"]


def deleted_while_loaded(folder: Path) -> None:
    assert service().run("deleted")["status"] == "done"
    service().path("deleted").unlink()
    answer = service().http.post("/api/generate", json={"model": "deleted", "device": "cuda:0", "prompt": "Hi"}).json()
    assert answer["code"] == "model_broken" and "does not exist" in answer["detail"] and "copy" in answer["remedy"]


def replaced_while_a_job_runs(folder: Path) -> None:
    path, before = service().path("slow"), sha256(service().path("slow"))
    running = service().begin("slow")
    wait_for(lambda: service().job(running)["output"]["text"])
    rename(path)
    path.with_suffix(".go").touch()
    old, new = service().until(running, "done")["receipt"], service().run("slow")["receipt"]
    assert (old["model_stamp"]["digest"], new["model_stamp"]["digest"]) == (before, sha256(path))
    assert old["worker_pid"] != new["worker_pid"] and old["used"] == new["used"] == "cuda:0"


def replaced_during_the_load(folder: Path) -> None:
    job = service().run("changes-once")
    assert job["status"] == "done" and len(job["receipt"]["attempts"]) == 1, job["error"]
    assert job["receipt"]["model_stamp"]["digest"] == sha256(service().path("changes-once"))


def replaced_during_each_load(folder: Path) -> None:
    job = service().run("changes", fallback="cpu")
    assert job["error"]["code"] == "model_broken" and "replaced while it was loaded" in job["error"]["detail"]
    assert nothing_ran(job) and job["receipt"]["model_stamp"] is None and job["receipt"]["model_file"] is None


def nothing_ran(job: dict[str, Any]) -> bool:
    """Return whether the receipt claims nothing."""
    return job["receipt"]["used"] is None and job["receipt"]["fell_back"] is None


def half_on_the_card(folder: Path) -> None:
    job = service().run("half")
    assert job["status"] == "done" and (job["receipt"]["used"], job["receipt"]["fell_back"]) == ("cuda:0", False)
    assert job["receipt"]["placement"]["on_device"] == 0.5


def placement_refused(folder: Path) -> None:
    job = service().run("below")
    assert (job["status"], job["error"]["code"], job["error"]["status"]) == ("error", "placement_too_low", 409)
    assert nothing_ran(job) and job["receipt"]["placement"]["on_device"] == 0.49
    assert "Only 49% of below is on cuda:0" in job["error"]["detail"] and "smaller model" in job["error"]["remedy"]
    assert job["receipt"]["attempts"][0]["error"] == "placement_too_low" and job["receipt"]["rate"] is None


def placement_refused_then_the_processor(folder: Path) -> None:
    receipt = service().run("below", fallback="cpu")["receipt"]
    assert (receipt["used"], receipt["fell_back"], receipt["resolved"]) == ("cpu", True, "cuda:0")
    assert [attempt["error"] for attempt in receipt["attempts"]] == ["placement_too_low", None]
    assert receipt["placement"]["on_device"] == 1.0 and receipt["runtime"] == "base"


def placement_refused_then_any_device(folder: Path) -> None:
    receipt = service().run("first-only", device="cuda:1", fallback="any")["receipt"]
    assert (receipt["used"], receipt["fell_back"]) == ("cuda:0", True)
    assert [attempt["device"] for attempt in receipt["attempts"]] == ["cuda:1", "cuda:0"]


def processor_passed_off_as_a_card(folder: Path) -> None:
    job = service().run("passed-off")
    assert job["error"]["code"] == "placement_too_low" and nothing_ran(job)
    assert not job["output"]["text"], "no token was computed"


def shares_that_cannot_be_true(folder: Path) -> None:
    job = service().run("contradiction")
    assert job["status"] == "done" and nothing_ran(job)
    assert "contradict each other" in job["receipt"]["placement"]["evidence"]


def library_without_a_word(folder: Path) -> None:
    body = {"model": "silent", "device": "cuda:0", "messages": [{"role": "user", "content": "Hi"}]}
    answer = service().http.post("/v1/chat/completions", json=body)
    assert (answer.headers["X-Device-Asked"], answer.headers["X-Device-Used"]) == ("cuda:0", "unknown")
    receipt = answer.json()["receipt"]
    assert receipt["used"] is None and receipt["placement"]["on_device"] is None and receipt["placement"]["evidence"]


def stream_names_the_device(folder: Path) -> None:
    body = {"model": "half", "device": "cuda:0", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with service().http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["X-Device-Used"] == "cuda:0", "it is known when the first token comes"
        answer.read()


def weights_leave_the_card(folder: Path) -> None:
    for model, share in (("leaves", "0%"), ("leaves-partly", "40%")):
        job = service().run(model)
        assert (job["error"]["code"], job["error"]["status"]) == ("device_wrong", 502) and nothing_ran(job)
        assert f"left cuda:0 during the job: {share} of it was there at the end" in job["error"]["detail"]
        assert "loaded again" in job["error"]["remedy"]
        assert job["receipt"]["worker_pid"] != service().run(model)["receipt"]["worker_pid"], "it is loaded again"


def weights_leave_the_card_then_the_processor(folder: Path) -> None:
    job = service().run("leaves", fallback="cpu")
    receipt = job["receipt"]
    assert job["status"] == "done" and (receipt["used"], receipt["fell_back"]) == ("cpu", True)
    assert [attempt["error"] for attempt in receipt["attempts"]] == ["device_wrong", None]
    assert "device_wrong" in receipt["reason"] and "cuda:0 " not in (job["output"]["text"] or "")


def weights_are_nowhere_at_the_end(folder: Path) -> None:
    job = service().run("vanishes")
    assert job["status"] == "done" and nothing_ran(job) and job["receipt"]["placement"]["on_device"] is None


def worker_dies_before_the_first_step(folder: Path) -> None:
    for model in ("dies-loading", "dies-early"):
        job = service().run(model)
        assert job["error"]["code"] == "worker_crashed" and nothing_ran(job), job


def worker_dies_after_the_first_step(folder: Path) -> None:
    job = service().run("dies-late")
    assert job["error"]["code"] == "worker_crashed"
    assert (job["receipt"]["used"], job["receipt"]["fell_back"]) == ("cuda:0", False), "a token was seen"


def load_refused(folder: Path) -> None:
    job = service().run("no-memory")
    assert job["error"]["code"] == "out_of_memory" and nothing_ran(job) and job["receipt"]["placement"] is None
    fallen = service().run("no-memory", fallback="cpu")
    assert fallen["receipt"]["used"] == "cpu" and fallen["receipt"]["fell_back"] is True


def device_lost_then_any_device(folder: Path) -> None:
    job = service().run("lost", fallback="any")
    assert (job["receipt"]["used"], job["output"]["text"]) == ("cuda:1", "cuda:1 ")
    assert [attempt["error"] for attempt in job["receipt"]["attempts"]] == ["device_lost", None]


def cancelled_while_loading(folder: Path) -> None:
    id_ = service().begin("slow-load")
    service().until(id_, "loading")
    service().http.post(f"/api/jobs/{id_}/cancel")
    job = service().until(id_, "cancelled")
    assert nothing_ran(job) and job["receipt"]["attempts"][0]["error"] == "job_cancelled"


def cancelled_in_the_queue(folder: Path) -> None:
    path = service().path("slow")
    path.with_suffix(".go").unlink(missing_ok=True)
    running = service().begin("slow", "cuda:1")
    wait_for(lambda: service().job(running)["output"]["text"])
    waiting = service().begin("half", "cuda:1")
    service().http.post(f"/api/jobs/{waiting}/cancel")
    assert service().until(waiting, "cancelled")["receipt"] is None, "no worker got it"
    service().http.post(f"/api/jobs/{running}/cancel")
    job = service().until(running, "cancelled")
    assert (job["receipt"]["used"], job["output"]["text"]) == ("cuda:1", "cuda:1 ")


def variations_with_a_failing_card(folder: Path) -> None:
    body = {"task": "music", "devices": ["cuda:0", "cuda:1"], "fallback": "never", "options": {"variations": 3}}
    job = service().http.post("/api/generate", json=body).json()
    assert job["status"] == "done", job
    receipt = job["receipt"]
    assert len(job["output"]["artifacts"]) == 3 and receipt["used"] == "cuda:0" and receipt["fell_back"] is True
    assert [attempt["error"] for part in receipt["parts"] for attempt in part["attempts"]] == [
        None,
        "device_lost",
        None,
    ]


def versions_are_the_workers(folder: Path) -> None:
    receipt = service().run("half")["receipt"]
    assert receipt["versions"] == {"torch": "2.9 of the worker", "python": "3.12.1"}


def loaded_without_a_job(folder: Path) -> None:
    answer = service().http.post("/api/models/plain/load", json={"device": "cuda:1"}).json()
    receipt = service().until(answer["id"], "done")["receipt"]
    assert (receipt["used"], receipt["model_stamp"]["digest"]) == ("cuda:1", sha256(service().path("plain")))


def asked_at_once(folder: Path) -> None:
    """Replace a file while several jobs wait for it: each names what it ran with."""
    path, receipts = service().path("plain"), list[Receipt]()
    jobs = [threading.Thread(target=lambda: receipts.append(service().run("plain")["receipt"])) for _ in range(4)]
    digests = {sha256(path)}
    for number, job in enumerate(jobs):
        job.start()
        if number == 1:
            rename(path)
            digests.add(sha256(path))
    for job in jobs:
        job.join()
    by_worker = {receipt["worker_pid"]: receipt["model_stamp"]["digest"] for receipt in receipts}
    assert all(by_worker[receipt["worker_pid"]] == receipt["model_stamp"]["digest"] for receipt in receipts)
    assert set(by_worker.values()) <= digests
    assert service().run("plain")["receipt"]["model_stamp"]["digest"] == sha256(path)


STACKS = [
    Stack(f"receipt-{check.__name__.replace('_', '-')}", "receipt", check)
    for check in (
        renamed_on_the_processor,
        renamed_on_a_card,
        written_in_place,
        written_with_the_old_time,
        link_switched,
        shard_replaced,
        external_data_replaced,
        deleted_while_loaded,
        replaced_while_a_job_runs,
        replaced_during_the_load,
        replaced_during_each_load,
        half_on_the_card,
        placement_refused,
        placement_refused_then_the_processor,
        placement_refused_then_any_device,
        processor_passed_off_as_a_card,
        shares_that_cannot_be_true,
        library_without_a_word,
        stream_names_the_device,
        weights_leave_the_card,
        weights_leave_the_card_then_the_processor,
        weights_are_nowhere_at_the_end,
        worker_dies_before_the_first_step,
        worker_dies_after_the_first_step,
        load_refused,
        device_lost_then_any_device,
        cancelled_while_loading,
        cancelled_in_the_queue,
        variations_with_a_failing_card,
        versions_are_the_workers,
        loaded_without_a_job,
        asked_at_once,
    )
]
