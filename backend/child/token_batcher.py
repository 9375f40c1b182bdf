"""Tokens on their way out of a worker: joined where they come fast, and those of one step sent together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from backend.common.token_batching import flush_interval_s

STEP_S = 0.004  # within which an engine hands out the tokens that it made of several texts at once
Send = Callable[[list[dict[str, Any]]], None]


class TokenBatcher:
    """The tokens of all jobs. A job's first goes at once, and so does each of a slow model that runs alone.

    Where several jobs write, what is due waits for the others of the same step, at most STEP_S.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.perf_counter) -> None:
        """`send` writes token frames, all at once, in their order."""
        self._send = send
        self.clock = clock
        self._lock = threading.Lock()  # held while sending, so that no job's end overtakes its tokens
        self._due = threading.Event()
        self._writing: set[_Line] = set()  # jobs that have sent a token and not ended
        self._ready = 0  # how many of them have something that is due
        self._helper: threading.Thread | None = None

    def line(self, job: str) -> _Line:
        """The tokens of one job; `flush` ends them."""
        return _Line(self, job)

    def add(self, line: _Line, data: dict[str, Any]) -> None:
        """Takes a token."""
        with self._lock:
            line.waiting.append(data)
            if line.ready or self.clock() - line.sent_at < flush_interval_s(len(self._writing)):
                return
            if line not in self._writing:
                self._writing.add(line)
                self._out([line])
                return
            line.ready = True
            self._ready += 1
            if self._ready >= len(self._writing):
                self._out(self._writing)
            elif self._ready == 1:
                self._due.set()
                self._help()

    def end(self, line: _Line) -> None:
        """Sends what a job still has."""
        with self._lock:
            self._out([line])
            self._writing.discard(line)

    def _out(self, lines: Any) -> None:
        frames = [line.taken() for line in lines if line.waiting]
        self._ready = sum(line.ready for line in self._writing)
        if frames:
            self._send(frames)

    def _help(self) -> None:
        if self._helper is None:
            self._helper = threading.Thread(target=self._send_late, daemon=True)
            self._helper.start()

    def _send_late(self) -> None:
        """Sends what the last job of a step did not, since it had no token in it."""
        while True:
            self._due.wait()
            self._due.clear()
            time.sleep(STEP_S)
            with self._lock:
                if self._ready:
                    self._out(self._writing)


class _Line:
    """What one job has to send."""

    def __init__(self, tokens: TokenBatcher, job: str) -> None:
        self._tokens = tokens
        self._job = job
        self.waiting: list[dict[str, Any]] = []
        self.sent_at = -math.inf
        self.ready = False

    def add(self, data: dict[str, Any]) -> None:
        """Takes a token."""
        self._tokens.add(self, data)

    def flush(self) -> None:
        """Sends what is left."""
        self._tokens.end(self)

    def taken(self) -> dict[str, Any]:
        """All that waits, as one frame."""
        joined: dict[str, Any] = {
            "op": "token",
            "job": self._job,
            "text": "".join(data["text"] for data in self.waiting),
            "count": sum(data["count"] for data in self.waiting),
        }
        if "logprobs" in self.waiting[0]:
            joined["logprobs"] = [token for data in self.waiting for token in data["logprobs"]]
        self.waiting, self.ready, self.sent_at = [], False, self._tokens.clock()
        return joined
