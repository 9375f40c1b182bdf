"""A server on a temporary data folder, for benchmarks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from backend.common.types import JsonObject

QUEUE_LIMIT = 1100
FOLLOWER_LIMIT = 100


class Service:
    """A server on a temporary data folder; `running` starts and stops it."""

    def __init__(self, folder: Path, models: dict[str, Path], more: JsonObject | None = None) -> None:
        self._folder = folder
        self.starts_s: list[float] = []  # per start: seconds to the first answer of /api/health
        self._config = folder / "config.yaml"
        content = {
            "models": {name: {"path": str(path)} for name, path in models.items()},
            **({"default_models": {"text": "large"}} if "large" in models else {}),
            "queue": {"limit": QUEUE_LIMIT},
            "server": {"follower_limit": FOLLOWER_LIMIT},
            **(more or {}),
        }
        self._config.write_text(json.dumps(content))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run a server with an empty history in the block. Its devices are proved."""
        data = str(self._folder / f"data-{len(self.starts_s) + 1}")
        words = [sys.executable, "-m", "backend", "serve", "--port", "0", "--config", str(self._config)]
        words += ["--data-dir", data]
        root = Path(__file__).parents[4]
        out, none = subprocess.PIPE, subprocess.DEVNULL
        started_s = time.perf_counter()
        self.process = subprocess.Popen(words, cwd=root, stdout=out, stderr=none, text=True)
        try:
            assert self.process.stdout
            self.address = urlsplit(self.process.stdout.readline().split()[-1]).netloc
            self.ask("GET", "/api/health")
            self.starts_s.append(time.perf_counter() - started_s)
            self.ask("GET", "/api/devices?wait_s=60")
            yield
        finally:
            self.process.terminate()
            self.process.communicate()  # waits, and closes the pipe

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send one request on a new connection; return the JSON answer."""
        with contextlib.closing(self.open(method, path, body, **headers)) as answer:
            return json.loads(answer.read() or b"null")

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> HTTPResponse:
        """Send a request; the caller reads and closes the response."""
        connection = HTTPConnection(self.address, timeout=600)
        text = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json", "Connection": "close", **headers}
        connection.request(method, path, text, sent)
        return connection.getresponse()

    def begin(self, **body: Any) -> str:
        """Start a job and return its id."""
        return str(self.ask("POST", "/api/generate", body, Prefer="respond-async")["id"])

    def until(self, job_id: str, *statuses: str) -> Any:
        """Wait for the first event of these kinds; return its data with its time of arrival. Raises RuntimeError."""
        answer = self.open("GET", f"/api/jobs/{job_id}/events")
        event = ""
        with contextlib.closing(answer):
            while line := answer.readline().decode():
                name, _, value = line.rstrip("\n").partition(": ")
                event = value if name == "event" else event
                if name == "data" and event in statuses:
                    return json.loads(value) | {"arrived": time.perf_counter()}
        raise RuntimeError(f"the events of {job_id} ended without {' or '.join(statuses)}")

    def drained(self) -> None:
        """Wait until no job is queued or running."""
        while any(self.ask("GET", "/api/health")["jobs"].values()):
            time.sleep(0.05)

    @staticmethod
    def post(http: HTTPConnection, body: Any, wait: bool = False) -> None:
        """Submit a job on an open connection. Raises RuntimeError if it is refused."""
        headers = {"Content-Type": "application/json", **({} if wait else {"Prefer": "respond-async"})}
        http.request("POST", "/api/generate", json.dumps(body), headers)
        answer = http.getresponse()
        content = answer.read()
        if answer.status not in (200, 202):
            raise RuntimeError(f"{answer.status} {content.decode()}")


def work(address: str, body: Any, jobs: int, at_once: int) -> None:
    """Run jobs to their end, from `at_once` concurrent clients that wait."""

    def client(number: int) -> None:
        with contextlib.closing(HTTPConnection(address)) as http:
            for _ in range(number, jobs, at_once):
                Service.post(http, body, wait=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(client, range(at_once)))
