"""Check each job: the guarantees, against what happened to it and what clients received."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backend.common.types import TERMINAL, Event
from tests.chaos.ledger import Told, Watched
from tests.chaos.service import Service
from tests.service import text_of

SLACK_S = 0.5  # between our clock readings and the server's
LIMITED = ("limit memory",)
DEATHS = ("kill worker", "limit memory")
HANGS = ("hang worker", "limit memory")
# Which faults may have led to an error; any other error is a lie or a fault of the server.
CAUSES: dict[str, tuple[str, ...]] = {
    "worker_crashed": DEATHS,
    "worker_hung": HANGS,
    "out_of_memory": LIMITED,
    "model_load_failed": LIMITED,
    "disk_full": ("fill disk",),
    "device_not_ready": ("kill probe", *DEATHS),
    "quarantined": (*DEATHS, *HANGS),
}


@dataclass
class Story:
    """All that is known of one job."""

    job: dict[str, Any]
    events: list[Event]
    told: Told | None
    watched: list[Watched] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The job's id."""
        return str(self.job["id"])

    def span(self) -> tuple[float, float]:
        """From its acceptance to its end."""
        return _seconds(self.job["created_at"]) - SLACK_S, _seconds(self.job["ended_at"]) + SLACK_S


class Judge:
    """Judges stories; `untold` counts endings that a full disk kept from being stored before a kill."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ledger = service.ledger
        self.untold = 0
        self.seen_ids: dict[tuple[str, int], Event] = {}

    def judge(self, story: Story) -> None:
        """Notes every promise broken."""
        checks: tuple[Callable[[Story], Iterator[str]], ...] = (
            self._history, self._text, self._cause, self._answer, self._streams,
        )  # fmt: skip
        if story.job["status"] not in TERMINAL:
            self._ledger.wrong(f"{story.id}: it never ended ({story.job['status']})")
            return
        for wrong in itertools.chain.from_iterable(check(story) for check in checks):
            self._ledger.wrong(f"{story.id} ({story.job['task']}, {story.job['status']}): {wrong}")

    def _history(self, story: Story) -> Iterator[str]:
        """Ids strictly rise; exactly one terminal event, the last, and it is the job's status."""
        ids = [event.id for event in story.events]
        if ids != sorted(set(ids)):
            yield f"event ids do not rise: {ids}"
        endings = [event.event for event in story.events if event.event in TERMINAL]
        if endings != [story.job["status"]] or story.events[-1].event != endings[0]:
            yield f"endings {endings}, last event {story.events[-1].event if story.events else None}"
        if not story.events or story.events[0].event != "queued":
            yield f"the history begins with {story.events[0].event if story.events else None}"

    def _text(self, story: Story) -> Iterator[str]:
        """The text is what the tokens say, and a finished job has a result and a receipt."""
        if (story.job["output"]["text"] or "") != text_of(story.events):
            yield f"text {story.job['output']['text']!r} is not what its tokens say: {text_of(story.events)!r}"
        if story.job["status"] == "done" and story.job["task"] == "text":
            receipt = story.job["receipt"]
            if story.job["output"]["finish_reason"] not in ("stop", "length"):
                yield f"done with finish_reason {story.job['output']['finish_reason']}"
            if not receipt or receipt["used"] != "cpu" or not receipt["counts"].get("tokens"):
                yield f"done with receipt {receipt}"
            elif sum(event.data.get("count", 0) for event in story.events) > receipt["counts"]["tokens"]:
                yield "more tokens shown than counted"

    def _cause(self, story: Story) -> Iterator[str]:
        """The ending has a cause that really struck."""
        job, (since, until) = story.job, story.span()
        died = [began for began, ended in self._service.deaths if began <= until and ended >= since]
        if job["status"] == "interrupted" and not (died and job["started_at"]):
            yield f"no server died between {job['started_at']} and {job['ended_at']}"
        if job["status"] == "cancelled":
            left = story.told is not None and story.told.left
            if not left and story.id not in self._ledger.cancelled:
                yield "nobody cancelled it, nobody left"
        if job["status"] in ("error", "interrupted"):
            problem = job["error"] or {}
            if not (problem.get("detail") and problem.get("remedy") and problem.get("code")):
                yield f"its error says too little: {problem}"
        if job["status"] == "error":
            code = job["error"]["code"]
            kinds = CAUSES.get(code, ())
            # A worker may have been struck before it was given the job.
            if not self._ledger.struck(kinds, since - 30, until):
                yield f"{code} without a cause: {job['error']['detail']}"

    def _answer(self, story: Story) -> Iterator[str]:
        """A waiting client was told what the history says."""
        told = story.told
        if told is None or told.answer is None or told.job_id != story.id:
            return
        answer = told.answer
        if answer["status"] == "queued":  # the server stopped, and said so
            if not self._died_in_life(told.life):
                yield "its client was told that the server stops"
            return
        for name in ("status", "output", "error", "receipt", "ended_at"):
            if answer[name] != story.job[name]:
                if self._untellable(story, answer["ended_at"]):
                    return
                yield f"its client was told {name} {answer[name]}, the history says {story.job[name]}"

    def _streams(self, story: Story) -> Iterator[str]:
        """What streams showed is how the history begins, but for the last moment before a kill."""
        stored = {event.id: event for event in story.events}
        for watched in story.watched:
            for event in watched.events:
                if self.seen_ids.setdefault((story.id, event.id), event) != event:
                    yield f"id {event.id} was given to two events"
            common = [event for event in watched.events if event.id in stored]
            lost = watched.events[len(common) :]
            if common != story.events[: len(common)] or common != watched.events[: len(common)]:
                if watched.events and self._untellable(story, watched.events[-1].data["at"]):
                    continue
                yield f"a stream showed {_short(watched.events)}, the history has {_short(story.events)}"
            elif lost and not self._died_in_life(watched.life):
                yield f"{_short(lost)} were shown and are not stored, though no server died"
            elif lost and lost[-1].event in TERMINAL:
                if not self._untellable(story, lost[-1].data["at"]):
                    yield f"the ending {lost[-1].event} was shown and taken back"
            elif lost and len(story.events) > len(common) and story.events[len(common)].id <= lost[-1].id:
                yield f"an id at or below {lost[-1].id} was used again"

    def _died_in_life(self, life: int) -> bool:
        return life <= len(self._service.deaths)

    def _untellable(self, story: Story, at: str) -> bool:
        """The disk was full when the client was told, and the server died before anything could be stored."""
        then = _seconds(at)
        for began, ended in self._service.disk.full_spans:
            until = (ended or then) + SLACK_S
            if began <= then <= until and any(then <= gone and died <= until for died, gone in self._service.deaths):
                self.untold += 1
                return True
        return False


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _short(events: list[Event]) -> str:
    names = [f"{event.id} {event.event}" for event in events]
    return ", ".join(names if len(names) < 8 else [*names[:3], "…", *names[-4:]])
