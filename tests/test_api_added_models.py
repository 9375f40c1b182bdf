"""Adding and removing models over HTTP and by the command line: a real server, a real child, a real web server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.file_server import FileServer
from tests.hub_server import HubServer, Repository
from tests.service import ROOT, Server, follow, wait_for
from tests.test_gguf import gguf

Launch = Callable[..., Server]
CONTENT = gguf(tensors=3000)
HALF = len(CONTENT) // 2
DEFAULT = "smollm2-135m-instruct"
TINY = ROOT / "tests" / "cases" / "gguf" / "tiny_no_template.gguf"


@pytest.fixture
def web() -> Iterator[FileServer]:
    with FileServer(CONTENT) as served:
        yield served


def model(server: Server, id_: str) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = server.http.get("/api/models").json()["models"]
    return next((each for each in found if each["id"] == id_), None)


def add(server: Server, **body: str) -> dict[str, Any]:
    answer = server.http.post("/api/models", json=body)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def verb(data_dir: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    return subprocess.run(
        [sys.executable, "-m", "backend", "models", *words, "--data-dir", str(data_dir)],
        cwd=ROOT,
        env={**variables, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_model_is_added_used_and_removed(launch: Launch, web: FileServer) -> None:
    server = launch()
    web.content = (server.data_dir / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").read_bytes()
    job = add(server, source=web.url, id="mine")
    assert (job["task"], job["model"], job["request"]["source"]) == ("download", "mine", web.url)
    done = server.until(job["id"], "done", "error")
    assert done["status"] == "done", done["error"]
    progress = [event.data for event in follow(server, job["id"]) if event.event == "progress"]
    assert progress[-1]["done"] == progress[-1]["total"] == len(web.content)
    assert progress[-1]["per_s"] > 0
    added = model(server, "mine")
    assert added and (added["state"], added["source"], added["bytes"]) == ("ready", web.url, len(web.content))
    server.http.get("/api/devices", params={"wait_s": 60})
    said = server.generate(prompt="Say hello.", model="mine", options={"max_tokens": 4})
    assert said["status"] == "done" and said["output"]["text"]
    held = server.http.delete("/api/models/mine")
    assert (held.status_code, held.json()["code"]) == (409, "job_active")
    assert "unload" in held.json()["remedy"]
    unloading = server.http.post("/api/models/mine/unload").json()
    assert server.until(unloading["id"], "done", "error")["status"] == "done"
    removed = server.http.delete("/api/models/mine")
    assert (removed.status_code, removed.content) == (204, b"")
    assert model(server, "mine") is None
    assert not (server.data_dir / "models" / "mine.gguf").exists()
    assert server.http.delete("/api/models/mine").status_code == 404


@pytest.mark.skipif(os.name != "posix", reason="kills with signal 9")
def test_a_download_outlives_the_server(launch: Launch, web: FileServer) -> None:
    web.gate.clear()
    web.gate_after = HALF
    server = launch()
    job = add(server, source=web.url)
    part = server.data_dir / "models/.fetch/tiny.gguf.part/tiny.gguf"
    wait_for(lambda: part.exists() and part.stat().st_size == HALF)
    downloading = model(server, "tiny")
    assert downloading and downloading["state"] == "downloading"
    wanted = server.http.delete("/api/models/tiny")
    assert (wanted.status_code, wanted.json()["code"]) == (409, "job_active")
    assert add(server, source=web.url)["id"] == job["id"], "a second request joins"
    server.stop(signal.SIGKILL)
    assert web.hung_up.wait(30), "the child outlived the server"
    web.gate.set()
    again = launch()
    assert again.job(job["id"])["status"] == "interrupted"
    found = model(again, "tiny")
    assert found and found["state"] == "downloadable"
    assert found["remedy"] and "models fetch tiny" in found["remedy"]
    done = again.until(add(again, source="tiny")["id"], "done", "error")
    assert done["status"] == "done", done["error"]
    assert (again.data_dir / "models/tiny.gguf").read_bytes() == CONTENT
    assert [asked.range for asked in web.asked] == [None, f"bytes={HALF}-"]
    assert web.bytes_sent == len(CONTENT)


def test_a_model_of_hugging_face_is_chosen_fetched_used_and_removed(launch: Launch, tmp_path: Path) -> None:
    files = {"tiny.Q4_K_M.gguf": TINY.read_bytes(), "tiny.Q8_0.gguf": CONTENT}
    with HubServer({"maker/model": Repository(files)}) as hub:
        server = launch(environ={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")})
        server.http.get("/api/devices", params={"wait_s": 60})
        done = server.until(add(server, source="hf:maker/model")["id"], "done", "error")
        assert done["status"] == "done", done["error"]
        said = done["output"]["text"]
        assert (
            "tiny.Q4_K_M.gguf (0 MB) was selected" in said
            and "hf:maker/model:Q8_0" in said
            and "It fits cpu (llama.cpp" in said
        )
        added = model(server, "model")
        assert added and (added["state"], added["bytes"]) == ("ready", len(files["tiny.Q4_K_M.gguf"]))
        again = add(server, source="hf:maker/model")
        assert again["model"] == "model", "the same source is the same model"
        server.until(again["id"], "done")
        body = {"model": "model", "prompt": "a", "options": {"max_tokens": 2, "raw": True}}
        job = server.generate(**body)
        assert job["status"] == "done" and job["receipt"]["used"] == "cpu", job
        server.until(server.http.post("/api/models/model/unload").json()["id"], "done")
        assert server.http.delete("/api/models/model").status_code == 204
        assert not list((tmp_path / "hf").rglob("*.gguf"))


def test_what_cannot_be_fetched_leaves_nothing(server: Server, web: FileServer) -> None:
    web.statuses = [(404, {})]
    failed = server.until(add(server, source=web.url, id="absent")["id"], "done", "error")
    assert failed["status"] == "error"
    assert failed["error"]["code"] == "model_not_downloaded"
    assert "no such file tiny.gguf" in failed["error"]["detail"]
    assert model(server, "absent") is None
    web.content = b"<!doctype html>"
    failed = server.until(add(server, source=web.url, id="absent")["id"], "done", "error")
    assert failed["error"]["code"] == "model_broken" and "a web page" in failed["error"]["detail"]
    assert model(server, "absent") is None


def test_a_cancel_keeps_what_came_until_the_model_is_removed(server: Server, web: FileServer) -> None:
    web.gate.clear()
    web.gate_after = HALF
    job = add(server, source=web.url, id="paused")
    part = server.data_dir / "models/.fetch/paused.gguf.part/paused.gguf"
    wait_for(lambda: part.exists() and part.stat().st_size == HALF)
    server.http.post(f"/api/jobs/{job['id']}/cancel")
    assert server.until(job["id"], "cancelled", "done", "error")["status"] == "cancelled"
    assert part.stat().st_size == HALF
    paused = model(server, "paused")
    assert paused and paused["state"] == "downloadable"
    assert server.http.delete("/api/models/paused").status_code == 204
    assert not part.exists() and model(server, "paused") is None


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({"source": "https://models.example/x.pt"}, 422, "pickle"),
        ({"source": "https://models.example/x.safetensors"}, 422, "not a .gguf file"),
        ({"source": "http://models.example/x.gguf"}, 422, "plain http"),
        ({"source": "https://huggingface.co/maker/model/discussions"}, 422, "a page of Hugging Face"),
        ({"source": "https://models.example/x.gguf", "id": "Bad Id"}, 422, "is not a valid model id"),
        ({"source": "https://models.example/x.gguf", "id": DEFAULT}, 422, "Another model has the id"),
        ({"source": "https://models.example/x.gguf", "task": "poems"}, 422, "Unknown task"),
        ({"source": "../../secret.gguf"}, 422, "outside the model folders"),
        ({"source": "\\\\host\\share\\x.gguf"}, 422, "outside the model folders"),
        ({"source": "x\0.gguf"}, 422, "control characters"),
        ({"source": "nothing-of-that-name"}, 404, "does not exist"),
        ({"source": ""}, 422, "source"),
        ({"source": "x" * 2001}, 422, "source"),
        ({"source": DEFAULT, "ident": "x"}, 422, "ident"),
    ],
)
def test_refusals(server: Server, body: dict[str, str], status: int, expected: str) -> None:
    answer = server.http.post("/api/models", json=body)
    assert answer.status_code == status, answer.text
    assert expected in answer.json()["detail"]
    assert answer.json()["remedy"]


def test_the_command_line_adds_and_removes_without_a_server(tmp_path: Path, web: FileServer) -> None:
    data_dir = tmp_path / "data"
    done = verb(data_dir, "add", web.url, "--id", "mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"Fetching {web.url} ...", "mine is ready."]
    assert (data_dir / "models/mine.gguf").read_bytes() == CONTENT
    assert "mine" in verb(data_dir, "list").stdout
    done = verb(data_dir, "remove", "mine")
    assert (done.returncode, done.stdout) == (0, "mine is removed.\n")
    assert not (data_dir / "models/mine.gguf").exists()
    failed = verb(data_dir, "remove", "mine")
    assert failed.returncode == 1 and "Unknown model 'mine'" in failed.stderr


def test_the_command_line_works_through_the_running_server(server: Server, web: FileServer, tmp_path: Path) -> None:
    done = verb(server.data_dir, "add", web.url, "--id", "through")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "through is ready.")
    jobs = server.http.get("/api/jobs", params={"task": "download", "limit": 1}).json()["jobs"]
    assert (jobs[0]["model"], jobs[0]["status"]) == ("through", "done")
    assert verb(server.data_dir, "remove", "through").returncode == 0
    assert model(server, "through") is None
    file = tmp_path / "elsewhere" / "Größe.gguf"
    file.parent.mkdir()
    file.write_bytes(gguf())
    done = verb(server.data_dir, "add", str(file), "--id", "local")
    assert (done.returncode, done.stdout) == (0, f"local is ready: {file}\n")
    found = model(server, "local")
    assert found and found["state"] == "ready", "the running server sees it at once"
    assert verb(server.data_dir, "remove", "local").returncode == 0
    assert file.exists() and model(server, "local") is None
    (tmp_path / "page.gguf").write_bytes(b"<html></html>")
    failed = verb(server.data_dir, "add", str(tmp_path / "page.gguf"))
    assert failed.returncode == 1 and "a web page" in failed.stderr
