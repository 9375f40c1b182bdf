"""Batching of generated tokens into frames: fast tokens of a job are joined, those of one decode step sent together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable

from backend.child.wire_protocol import TokenFrame
from backend.common.engine_api import TokenEvent
from backend.common.token_batching import flush_interval_s

STEP_S = 0.004  # an engine that decodes a batch emits all tokens of a step within this time
Send = Callable[[list[TokenFrame]], None]


class TokenBatcher:
    """The tokens of all jobs of a worker.

    The first token of a job is sent immediately, and so is each token of a slow model that runs one job. With several
    jobs, tokens that are due wait for those of the other jobs in the same step, at most STEP_S.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.perf_counter) -> None:
        """`send` writes token frames in one call, in their order. `clock` returns seconds."""
        self._send = send
        self.clock = clock
        self._lock = threading.Lock()  # held while sending, so that the end of a job never overtakes its tokens
        self._due = threading.Event()
        self._active: set[JobTokens] = set()  # jobs that have sent a token and not ended
        self._due_count = 0  # how many of them have tokens that are due
        self._timer: threading.Thread | None = None

    def open_job(self, job: str) -> JobTokens:
        """Return the tokens of one job; `flush` ends them."""
        return JobTokens(self, job)

    def add(self, tokens: JobTokens, data: TokenEvent) -> None:
        """Add a token of a job, and send what is due."""
        with self._lock:
            tokens.pending.append(data)
            if tokens.is_due or self.clock() - tokens.sent_at_s < flush_interval_s(len(self._active)):
                return
            if tokens not in self._active:
                self._active.add(tokens)
                self._flush_jobs([tokens])
                return
            tokens.is_due = True
            self._due_count += 1
            if self._due_count >= len(self._active):
                self._flush_jobs(self._active)
            elif self._due_count == 1:
                self._due.set()
                self._start_timer()

    def end(self, tokens: JobTokens) -> None:
        """Send the pending tokens of a job that ends."""
        with self._lock:
            self._flush_jobs([tokens])
            self._active.discard(tokens)

    def _flush_jobs(self, jobs: Iterable[JobTokens]) -> None:
        frames = [tokens.drain() for tokens in jobs if tokens.pending]
        self._due_count = sum(tokens.is_due for tokens in self._active)
        if frames:
            self._send(frames)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Thread(target=self._send_late, daemon=True)
            self._timer.start()

    def _send_late(self) -> None:
        """Send due tokens after STEP_S if not every active job had a token in the step."""
        while True:
            self._due.wait()
            self._due.clear()
            time.sleep(STEP_S)
            with self._lock:
                if self._due_count:
                    self._flush_jobs(self._active)


class JobTokens:
    """The pending tokens of one job."""

    def __init__(self, batcher: TokenBatcher, job: str) -> None:
        self._batcher = batcher
        self._job = job
        self.pending: list[TokenEvent] = []
        self.sent_at_s = -math.inf
        self.is_due = False

    def add(self, data: TokenEvent) -> None:
        """Add a token event of the job."""
        self._batcher.add(self, data)

    def flush(self) -> None:
        """Send the pending tokens and end the job."""
        self._batcher.end(self)

    def drain(self) -> TokenFrame:
        """Return all pending tokens as one frame."""
        frame: TokenFrame = {
            "op": "token",
            "job": self._job,
            "text": "".join(data["text"] for data in self.pending),
            "count": sum(data["count"] for data in self.pending),
        }
        if "logprobs" in self.pending[0]:
            frame["logprobs"] = [token for data in self.pending for token in data["logprobs"]]
        self.pending, self.is_due, self.sent_at_s = [], False, self._batcher.clock()
        return frame
