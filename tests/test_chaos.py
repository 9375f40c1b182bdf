"""A short run of the random faults with fixed seeds; docs/testing.md describes the long one."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.common.timestamps import utc_now
from backend.common.types import Event

SEED = 4
ROUNDS = 8  # in seven every kind of fault strikes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sends signals")


def test_no_promise_breaks_under_random_faults(tmp_path: Path, model_file: Path) -> None:
    from tests.chaos.rounds import Run
    from tests.chaos.table import table

    result = Run(tmp_path, model_file, SEED, print).run(ROUNDS)
    print(table(result))
    assert result.violations == []
    assert result.rounds == ROUNDS
    assert result.endings["done"] > ROUNDS
    assert sum(result.faults.values()) > ROUNDS


def story() -> Any:
    """A job that a client saw from its acceptance to its end, all of it true."""
    from tests.chaos.checks import Story
    from tests.chaos.ledger import Told, Watched

    at = utc_now()
    job: dict[str, Any] = {
        "id": "1", "task": "text", "status": "done", "created_at": at, "started_at": at, "ended_at": at, "error": None,
        "output": {"text": "ab", "finish_reason": "stop"}, "receipt": {"used": "cpu", "counts": {"tokens": 2}},
    }  # fmt: skip
    tokens = [{"text": "a", "count": 1}, {"text": "b", "count": 1}]
    kinds = [("queued", {}), *(("token", token) for token in tokens), ("done", {})]
    events = [Event(number, kind, {"at": at, **data}) for number, (kind, data) in enumerate(kinds, 1)]
    told = Told("#1#", "wait", 1, job_id="1", answer=dict(job))
    return Story(job, events, told, [Watched("1", 1, list(events))])


def test_the_judge_finds_nothing_wrong_with_the_truth() -> None:
    assert judged(story()) == []


def judged(subject: Any, died: bool = False) -> list[str]:
    from tests.chaos.checks import Judge
    from tests.chaos.ledger import Ledger
    from tests.chaos.service import Service

    disk = SimpleNamespace(full_spans=[])
    service = SimpleNamespace(ledger=Ledger(), disk=disk, deaths=[(time.time(), time.time())] if died else [])
    Judge(cast(Service, service)).judge(subject)
    return list(service.ledger.violations)


def change(subject: Any, **fields: Any) -> None:
    subject.job.update(fields)
    subject.told.answer.update(fields)
    if status := fields.get("status"):
        last = replace(subject.events[-1], event=status)
        subject.events[-1] = subject.watched[0].events[-1] = last


PROBLEM = {"code": "worker_crashed", "detail": "It died.", "remedy": "Again."}


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda it: change(it, status="running"), "never ended"),
        (lambda it: it.events.insert(2, it.events[1]), "do not rise"),
        (lambda it: it.events.pop(), "endings"),
        (lambda it: it.events.append(replace(it.events[-1], id=9)), "endings"),
        (lambda it: it.events.pop(0), "begins with"),
        (lambda it: change(it, output={"text": "abc", "finish_reason": "stop"}), "tokens say"),
        (lambda it: change(it, receipt=None), "receipt"),
        (lambda it: change(it, status="cancelled"), "nobody cancelled"),
        (lambda it: change(it, status="interrupted", error=PROBLEM), "no server died"),
        (lambda it: change(it, status="error", error=PROBLEM), "without a cause"),
        (lambda it: it.told.answer.update(status="error"), "its client was told"),
        (lambda it: it.watched[0].events.insert(3, Event(7, "token", {"at": "", "text": "!"})), "a stream showed"),
        (lambda it: it.events.pop(2), "a stream showed"),
    ],
)
def test_the_judge_finds_every_lie(lie: Any, words: str) -> None:
    subject = story()
    lie(subject)
    assert any(words in wrong for wrong in judged(subject)), judged(subject)


def test_after_a_kill_the_last_moment_may_be_missing_but_no_ending_and_no_id_twice() -> None:
    kept = story()
    change(kept, status="interrupted", error=PROBLEM)
    shown = kept.watched[0].events
    shown[-1] = Event(4, "token", {"at": shown[0].data["at"], "text": "c", "count": 1})
    kept.events[-1] = replace(kept.events[-1], id=1001)
    assert judged(kept, died=True) == []
    assert any("no server died" in wrong for wrong in judged(kept))
    kept.events[-1] = replace(kept.events[-1], id=4)
    assert judged(kept, died=True)
    gone = story()
    gone.watched[0].events[-1] = Event(5, "done", gone.events[-1].data)
    assert any("taken back" in wrong for wrong in judged(gone, died=True))
