"""Runtimes on a real server: a kill or cancel leaves no files, and an installed runtime is usable at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from backend.server.openapi.shapes import FILE
from tests.runtimes.stacks import NAME, Index, recipe_folder
from tests.runtimes.test_making import running
from tests.service import ROOT, Server, follow, start_server, wait_for


class Place:
    """A data folder, and servers on it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.under = [sys.executable, "-m", "tests.runtimes.with_recipes", str(recipe_folder(folder / "recipes"))]

    def start(self) -> Server:
        return start_server(self.data, under=self.under)

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The verb `runtimes`."""
        command = [*self.under, sys.executable, "-m", "backend", "runtimes", *words, "--data-dir", str(self.data)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    @property
    def folder(self) -> Path:
        return self.data / "runtimes" / NAME


@pytest.fixture
def place(quiet: pytest.MonkeyPatch, index: Index, tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)
    index.gate.set()


def listed(server: Server) -> dict[str, Any]:
    found: list[dict[str, Any]] = server.http.get("/api/runtimes").json()["runtimes"]
    schema = json.loads(FILE.read_text())["Runtime"]
    for runtime in found:
        jsonschema.validate(runtime, schema)
    return next(runtime for runtime in found if runtime["name"] == NAME)


def begun(server: Server, index: Index) -> str:
    """The id of an install that stands still in the middle of a wheel."""
    index.stalled.clear()
    index.gate.clear()
    answer = server.http.post(f"/api/runtimes/{NAME}/install")
    assert answer.status_code == 202 and answer.headers["Location"] == f"/api/jobs/{answer.json()['id']}"
    assert index.stalled.wait(60)
    return str(answer.json()["id"])


def test_a_kill_and_a_cancel_in_the_middle_and_then_an_install(place: Place, index: Index) -> None:
    server = place.start()
    killed = begun(server, index)
    assert listed(server)["state"] == "installing" and listed(server)["job"] == killed
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert not running(place.data, 5), "what the killed server started ends with it"
    index.gate.set()

    server = place.start()
    assert server.job(killed)["status"] == "interrupted" and listed(server)["state"] == "installable"
    assert not place.folder.exists(), "the half of it is gone"
    cancelled = begun(server, index)
    assert server.http.post(f"/api/jobs/{cancelled}/cancel").status_code == 202
    assert server.until(cancelled, "cancelled", "error")["status"] == "cancelled"
    assert not place.folder.exists() and not running(place.folder, 5)
    index.gate.set()

    assert server.http.post("/api/runtimes/nothing/install").status_code == 404
    assert server.http.post("/api/runtimes/vitisai/install").json()["code"] == "validation_error"
    said = place.verb("install", NAME)  # by the server
    assert said.returncode == 0 and "cpu proved" in said.stdout, said.stderr
    assert said.stderr.startswith("A tiny runtime: 0 MB to download, 1 min at 10 MB/s, 0 MB on disk.\n")
    job = server.http.get("/api/jobs?task=install&limit=1").json()["jobs"][0]
    assert job["status"] == "done" and [e.event for e in follow(server, job["id"])][-1] == "done"
    version = listed(server)["version"]
    assert server.stop() == 0

    server = place.start()
    device = wait_for(lambda: next(d for d in devices(server) if d["id"] == "cpu" and NAME in d["served_by"]))
    assert device["state"] == "ready" and listed(server)["version"] == version
    assert server.http.post(f"/api/runtimes/{NAME}/rollback").status_code == 422
    assert server.http.delete(f"/api/runtimes/{NAME}").status_code == 204
    assert listed(server)["state"] == "installable" and not place.folder.exists()
    begun(server, index)
    assert server.stop() == 0
    assert not running(place.data, 1), "nor does anything stay behind of a server that is stopped in the middle"


def devices(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.http.get("/api/devices?wait_s=60").json()["devices"]
    return found


def test_without_a_server_the_verb_does_it_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    said = place.verb("--json")
    assert said.returncode == 0, said.stderr
    states = {runtime["name"]: runtime["state"] for runtime in json.loads(said.stdout)["runtimes"]}
    assert states["base"] == "installed" and states[NAME] == "installable" and states["vitisai"] == "unsupported"
    assert not place.data.exists() or not list(place.data.iterdir()), "looking changes nothing"
    failed = place.verb("verify", NAME)
    assert failed.returncode == 1 and "is not installed" in failed.stderr and f"install {NAME}" in failed.stderr
