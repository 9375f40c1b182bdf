"""Start and use a real `python -m backend serve` in tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from backend.common.types import Event

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Server:
    """A running `python -m backend serve`."""

    process: subprocess.Popen[str]
    url: str
    data_dir: Path
    log: Path
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=120, trust_env=False)

    def generate(self, **body: Any) -> dict[str, Any]:
        """Waits for a job and returns the answer's body."""
        answer: dict[str, Any] = self.http.post("/api/generate", json=body).json()
        return answer

    def job(self, job_id: str) -> dict[str, Any]:
        """One job."""
        found: dict[str, Any] = self.http.get(f"/api/jobs/{job_id}").json()
        return found

    def until(self, job_id: str, *statuses: str, limit_s: float = 60) -> dict[str, Any]:
        """Waits until the job is in one of these states."""
        found: dict[str, Any] = wait_for(lambda: (job := self.job(job_id))["status"] in statuses and job, limit_s)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)


def wait_for(look: Callable[[], Any], limit_s: float = 30) -> Any:
    """Looks again and again until there is something to see."""
    end = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.02)
    return seen


def start_server(
    data_dir: Path, *flags: str, environ: dict[str, str] | None = None, under: Sequence[str] = ()
) -> Server:
    """Starts a server and waits for its first line. `under` is a program that becomes it.

    Without a configuration of the test, a model runs one job at a time, so that further ones wait in the queue.
    """
    log = data_dir.parent / f"{data_dir.name}.log"
    alone = {} if "--config" in flags else {"TOUCHSTONE_TEXT__SLOTS": "1"}
    process, line = first_line(log, ["--data-dir", str(data_dir), *flags], alone | (environ or {}), under)
    assert " listening on " in line, f"no first line: {line!r}; log: {log.read_text()}"
    return Server(process, line.split()[-1], data_dir, log)


def first_line(
    log: Path, flags: list[str], environ: dict[str, str], under: Sequence[str] = ()
) -> tuple[subprocess.Popen[str], str]:
    """Starts `serve` on a free port and returns it with the first line it says, empty if it ends without one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOUCHSTONE_")}
    with log.open("a") as stderr:
        process = subprocess.Popen(
            [*under, sys.executable, "-m", "backend", "serve", "--port", "0", *flags],
            cwd=ROOT,
            env={**variables, **environ},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout
    with process.stdout:
        return process, process.stdout.readline()


def furnished(folder: Path, model_file: Path) -> Path:
    """Puts the model into a data folder."""
    models = folder / "models"
    models.mkdir(parents=True)
    try:
        os.link(model_file, models / model_file.name)
    except OSError:
        shutil.copy(model_file, models)
    return folder


def stream_events(server: Server, body: dict[str, Any]) -> Iterator[Event]:
    """Generates with `stream` and yields the events as they come; leaving closes the connection."""
    with server.http.stream("POST", "/api/generate", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        yield from read_events(answer.iter_lines())


def follow(server: Server, job_id: str, after: int = 0) -> list[Event]:
    """All events of a job above `after`, to the end."""
    with server.http.stream("GET", f"/api/jobs/{job_id}/events", headers={"Last-Event-ID": str(after)}) as answer:
        assert answer.status_code == 200, answer.read()
        return list(read_events(answer.iter_lines()))


def read_events(lines: Iterable[str]) -> Iterator[Event]:
    """Reads server-sent events."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}


def text_of(events: Iterable[Event]) -> str:
    """The tokens joined since the last fallback."""
    text = ""
    for event in events:
        text = "" if event.event == "fallback" else text + event.data.get("text", "")
    return text
