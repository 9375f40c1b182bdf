"""The record of faults and of responses to clients, which the checks compare with the history."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from backend.common.types import Event


@dataclass
class Told:
    """One request to generate, and all that its client was told of the job."""

    mark: str  # begins the prompt; no other request has it
    how: str
    life: int  # of the server
    large: bool = False  # for the larger model
    job_id: str | None = None
    answer: dict[str, Any] | None = None  # the Job that a waiting request was answered with
    left: bool = False


@dataclass
class Watched:
    """Events that one stream of a job showed, from the first on."""

    job_id: str
    life: int
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True)
class Strike:
    """A fault: what, when, and the process it struck."""

    kind: str
    began: float
    ended: float
    pid: int | None = None


class Ledger:
    """Written by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.told: dict[str, Told] = {}  # by mark
        self.watched: list[Watched] = []
        self.accepted: dict[str, str] = {}  # job id to mark
        self.by_key: dict[str, str] = {}  # Idempotency-Key to job id
        self.reruns: Counter[str] = Counter()  # by mark: asked for, answered or not
        self.cancelled: dict[str, float] = {}
        self.deleted: set[str] = set()
        self.strikes: list[Strike] = []
        self.violations: list[str] = []
        self.refusals: Counter[str] = Counter()

    def ask(self, told: Told) -> None:
        """A request is about to be sent."""
        with self._lock:
            self.told[told.mark] = told

    def accept(self, told: Told, job_id: str) -> None:
        """The server named the job."""
        with self._lock:
            told.job_id = job_id
            self.accepted[job_id] = told.mark

    def keyed(self, key: str, job_id: str) -> None:
        """A request with this key was answered with this job."""
        with self._lock:
            known = self.by_key.setdefault(key, job_id)
        if known != job_id:
            self.wrong(f"Idempotency-Key {key} gave {known} and then {job_id}")

    def watch(self, job_id: str, life: int) -> Watched:
        """A stream begins."""
        with self._lock:
            self.watched.append(Watched(job_id, life))
            return self.watched[-1]

    def strike(self, kind: str, began: float, pid: int | None = None) -> None:
        """A fault has ended."""
        with self._lock:
            self.strikes.append(Strike(kind, began, time.time(), pid))

    def struck(self, kinds: tuple[str, ...], since: float, until: float) -> bool:
        """Whether one of these faults fell into that time."""
        with self._lock:
            return any(s.kind in kinds and s.began <= until and s.ended >= since for s in self.strikes)

    def refuse(self, code: str) -> None:
        """A request was refused, so there is no job."""
        with self._lock:
            self.refusals[code] += 1

    def wrong(self, what: str) -> None:
        """A promise was broken."""
        with self._lock:
            self.violations.append(what)
