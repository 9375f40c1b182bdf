"""Clients that submit jobs in every way, record the responses, and can be disconnected."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from backend.common.types import TERMINAL, Event
from tests.chaos.ledger import Ledger, Told
from tests.chaos.service import Service
from tests.service import read_events

BREATH_S = 0.1  # after a refusal, and between two requests
PATIENCE_S = 60.0  # an answer that takes longer counts as lost
REFUSALS = {"disk_full", "quarantined", "device_not_ready", "queue_full", "interrupted"}
_numbers = itertools.count(1)


class Client(threading.Thread):
    """Works while `working` is set. `resting` is set between two requests."""

    def __init__(self, name: str, seed: int, service: Service, ledger: Ledger, working: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._dice = random.Random(seed)
        self._service = service
        self._ledger = ledger
        self._working = working
        self._http: http.client.HTTPConnection | None = None
        self.large_share = 0.0
        self.resting = threading.Event()
        self.ending = False
        self.waits_for: str | None = None  # `wait` or `stream` while it does
        self._cut = False
        self._life = 0

    def run(self) -> None:
        """Submits until `ending`."""
        ways = {"wait": self._wait, "stream": self._stream, "async": self._async, "key": self._key, "pile": self._pile}
        while not self.ending:
            if not (self._working.is_set() and self._service.up.is_set()):
                self.resting.set()
                threading.Event().wait(0.02)
                continue
            self.resting.clear()
            self._life = self._service.life
            how = self._dice.choice(list(ways))
            told = self._asked(how)
            self._cut = False
            try:
                ways[how](told)
            except (OSError, http.client.HTTPException) as error:
                self._explain(told, error)
            else:
                threading.Event().wait(BREATH_S)
            finally:
                told.left = told.left or (self._cut and how in ("wait", "stream"))
                self.waits_for = None
                self._hang_up()
        self.resting.set()

    def cut(self) -> bool:
        """Breaks the connection from another thread; False if there is none to break."""
        connection = self._http
        if connection is None or connection.sock is None or self.waits_for is None:
            return False
        self._cut = True
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True

    def _wait(self, told: Told) -> None:
        self.waits_for = "wait"
        answer = self._post(told)
        said = json.loads(answer.read())
        job_id = answer.headers.get("X-Job-Id")
        if job_id:
            self._ledger.accept(told, job_id)
            told.answer = said if answer.status == 200 else said.get("job")
            if told.answer is None:
                self._ledger.wrong(f"{job_id}: an answer with {answer.status} has no job: {said}")
        else:
            self._refused(answer.status, said)

    def _stream(self, told: Told) -> None:
        answer = self._post(told, stream=True)
        job_id = answer.headers.get("X-Job-Id")
        if not job_id:
            self._refused(answer.status, json.loads(answer.read()))
            return
        self._ledger.accept(told, job_id)
        self.waits_for = "stream"
        self._read(told, job_id, answer)

    def _async(self, told: Told) -> None:
        job_id = self._begin(told, {})
        if job_id and self._dice.random() < 0.4:
            answer = self._request("GET", f"/api/jobs/{job_id}/events")
            if answer.status == 200:
                self._read(told, job_id, answer)

    def _pile(self, told: Told) -> None:
        """Several jobs at once, so that some wait when the server is struck."""
        self._begin(told, {})
        for _ in range(self._dice.randint(2, 6)):
            self._begin(self._asked("pile"), {})

    def _asked(self, how: str) -> Told:
        large = self._dice.random() < self.large_share
        told = Told(f"#{next(_numbers)}#", how, self._service.life, large)
        self._ledger.ask(told)
        return told

    def _key(self, told: Told) -> None:
        """The same key again and again is the same job."""
        key = {"Idempotency-Key": told.mark}
        for _ in range(self._dice.randint(1, 3)):
            if job_id := self._begin(told, key):
                self._ledger.keyed(told.mark, job_id)
            self._hang_up()

    def _begin(self, told: Told, headers: dict[str, str]) -> str | None:
        answer = self._post(told, {"Prefer": "respond-async", **headers})
        said = json.loads(answer.read())
        if answer.status != 202:
            self._refused(answer.status, said)
            return None
        self._ledger.accept(told, said["id"])
        return str(said["id"])

    def _read(self, told: Told, job_id: str, answer: http.client.HTTPResponse) -> None:
        """Reads the stream to its end; one without a terminal event is fine only if the server died."""
        watched = self._ledger.watch(job_id, self._service.life)
        for event in _events(answer):
            watched.events.append(event)
        if not self._cut and (not watched.events or watched.events[-1].event not in TERMINAL):
            if job_id not in self._ledger.deleted:
                self._explain(told, EOFError("the stream ended without an ending"))

    def _post(
        self, told: Told, headers: dict[str, str] | None = None, stream: bool = False
    ) -> http.client.HTTPResponse:
        dice = random.Random(told.mark)  # a repeated key sends the same body
        body: dict[str, Any] = {"model": "tiny", "prompt": told.mark + " Hi.", "stream": stream}
        tokens = dice.choice((1, 8, 32, 90))
        if told.large:
            body |= {"model": "large", "prompt": told.mark + " Tell me more." * dice.choice((1, 1, 15))}
            tokens = dice.randint(1, 25)
        body["options"] = {"max_tokens": tokens, "temperature": 1.5}
        return self._request("POST", "/api/generate", json.dumps(body), headers or {})

    def _request(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        self._hang_up()
        self._http = http.client.HTTPConnection(urlsplit(self._service.server.url).netloc, timeout=PATIENCE_S)
        about = {"Content-Type": "application/json", "X-Client-Id": self.name}
        self._http.request(method, path, body, {**about, **(headers or {})})
        return self._http.getresponse()

    def _hang_up(self) -> None:
        if self._http:
            self._http.close()
            self._http = None

    def _refused(self, status: int, said: dict[str, Any]) -> None:
        code = str(said.get("code"))
        self._ledger.refuse(code)
        threading.Event().wait(BREATH_S)
        stopping = not self._service.up.is_set() or self._service.life != self._life
        if code not in REFUSALS or not said.get("remedy") or (code == "interrupted" and not stopping):
            self._ledger.wrong(f"a request was refused with {status} {said}")

    def _explain(self, told: Told, error: Exception) -> None:
        """A connection may break if the client was cut, or the server struck dead."""
        if not self._cut and told.life == self._service.life and self._service.up.is_set():
            self._ledger.wrong(f"{told.job_id or told.mark} ({told.how}): {error!r} while the server lived")


def _events(answer: http.client.HTTPResponse) -> Iterator[Event]:
    """The events that came whole; a connection that breaks off ends them."""

    def lines() -> Iterator[str]:
        while line := answer.readline():
            yield line.decode().rstrip("\n")

    try:
        yield from read_events(lines())
    except (OSError, http.client.HTTPException, AttributeError, ValueError):  # closed under the reader's hands
        return
