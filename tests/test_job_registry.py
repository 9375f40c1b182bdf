"""The registry and the store: cancellation in every status, pages, idempotency keys, old files, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common import errors
from backend.common.timestamps import timestamp
from backend.common.types import ACTIVE, TERMINAL, Event, JobStatus
from backend.jobs.event_bus import EventBus
from backend.jobs.live_job import LiveJob, new_job_id, new_row, replay_artifacts, replay_text, seed_job_ids
from backend.jobs.registry import JobRegistry
from backend.jobs.store.schema import COLUMNS, MIGRATIONS, decode_row, encode_row
from backend.jobs.store.sqlite import JobStore

Play = Callable[[JobRegistry, JobStore], Awaitable[None]]


def use(folder: Path, play: Play, closing: bool = True) -> None:
    """Open the history, act on it, and close it; without `closing` as a server that is killed."""

    async def run() -> None:
        store = JobStore(folder / "jobs.sqlite3")
        registry = JobRegistry(store)
        await registry.open()
        try:
            async with asyncio.timeout(10):
                await play(registry, store)
        finally:
            if closing:
                for job in [job for job in registry.live.values() if job.status != "queued"]:
                    await job.end("cancelled")  # no worker does it here
                await registry.close()
            else:
                assert registry._flusher
                registry._flusher.cancel()
                await store.close()

    asyncio.run(run())


async def add(registry: JobRegistry, status: JobStatus = "queued", task: str = "text") -> LiveJob:
    """Add a job and bring it to a status."""
    job = await registry.add(new_row(task, "m", {"prompt": "x"}, "c"))
    if status in TERMINAL:
        await job.end(status)
        registry.live.pop(job.id, None)
    elif status != "queued":
        await job.set_status(status, {})
    return job


@pytest.mark.parametrize("status", [*ACTIVE, *TERMINAL])
def test_only_a_job_that_has_not_ended_can_be_cancelled_and_only_an_ended_one_deleted(
    tmp_path: Path, status: JobStatus
) -> None:
    async def play(registry: JobRegistry, store: JobStore) -> None:
        job = await add(registry, status)
        if status in ACTIVE:
            assert (await registry.cancel(job.id))["status"] == status, "the job ends later, at its next step"
            assert job.cancelling.is_set() and (await registry.cancel(job.id))["id"] == job.id
            with pytest.raises(errors.JobActive, match=status):
                await registry.delete(job.id)
            assert await store.job(job.id)
        else:
            with pytest.raises(errors.JobFinished, match=status):
                await registry.cancel(job.id)
            await registry.delete(job.id)
            for call in (registry.cancel, registry.delete, registry.view, registry.follow):
                with pytest.raises(errors.UnknownJob):
                    await call(job.id)
            assert await store.events(job.id) == []

    use(tmp_path, play)


ENDINGS: list[tuple[BaseException | None, str, str | None]] = [
    (None, "done", None),
    (errors.JobCancelled("It was cancelled.", "Rerun it."), "cancelled", None),
    (errors.OutOfMemory("Too large.", "Use less."), "error", "out_of_memory"),
    (ZeroDivisionError("secret"), "error", "internal_error"),
    (asyncio.CancelledError(), "interrupted", "interrupted"),
]


@pytest.mark.parametrize(("raised", "status", "code"), ENDINGS, ids=[ending[1] + str(ending[2]) for ending in ENDINGS])
def test_the_exception_of_the_work_decides_how_the_job_ends(
    tmp_path: Path, raised: BaseException | None, status: str, code: str | None
) -> None:
    async def play(registry: JobRegistry, store: JobStore) -> None:
        order: list[str] = []
        job = await add(registry, "running")

        async def work() -> None:
            order.append("work")
            if raised:
                raise raised

        registry.supervise(job, work(), lambda: order.append(f"before the end, while {job.status}"))
        await job.ended.wait()
        view = await registry.view(job.id)
        assert view["status"] == status and order == ["work", "before the end, while running"]
        error: Any = view["error"]
        error = error["code"] if isinstance(error, dict) else error and error.code
        assert error == code and "secret" not in str(view)
        assert job.events[-1].event == status and view["ended_at"] >= view["started_at"]

    use(tmp_path, play)


def test_jobs_are_counted_in_each_status_until_they_end(tmp_path: Path) -> None:
    async def play(registry: JobRegistry, store: JobStore) -> None:
        jobs = [await add(registry) for _ in range(3)]
        assert [registry.count(status) for status in ACTIVE] == [3, 0, 0]
        await jobs[0].set_status("loading", {})
        await jobs[1].set_status("loading", {})
        await jobs[1].set_status("running", {})
        assert [registry.count(status) for status in ACTIVE] == [1, 1, 1] and registry.count(*ACTIVE) == 3
        await jobs[1].end("done")
        await jobs[1].end("error")
        await jobs[0].set_status("queued", {})
        assert [registry.count(status) for status in ACTIVE] == [2, 0, 0]

    use(tmp_path, play)


@pytest.mark.parametrize(
    ("statuses", "task", "limit", "field"),
    [
        (["finished"], None, 10, "status"),
        (["done", ""], None, 10, "status"),
        ([], "cooking", 10, "task"),
        ([], None, 0, "limit"),
        ([], None, 201, "limit"),
        ([], None, -1, "limit"),
    ],
)
def test_a_page_that_cannot_be_is_refused(
    tmp_path: Path, statuses: list[str], task: str | None, limit: int, field: str
) -> None:
    async def play(registry: JobRegistry, store: JobStore) -> None:
        with pytest.raises(errors.Validation, match=field):
            await registry.views(statuses, task, limit, None)

    use(tmp_path, play)


def test_pages_mix_live_and_stored_jobs_newest_first_without_their_text(tmp_path: Path) -> None:
    async def play(registry: JobRegistry, store: JobStore) -> None:
        mixed: list[JobStatus] = ["done", "queued", "error", "running", "done"]
        jobs = [await add(registry, status) for status in mixed]
        await jobs[3].emit("token", {"text": "secret", "count": 1})
        first = await registry.views([], None, 2, None)
        second = await registry.views([], None, 2, first["next"])
        third = await registry.views([], None, 2, second["next"])
        shown = [job for page in (first, second, third) for job in page["jobs"]]
        assert [job["id"] for job in shown] == [job.id for job in reversed(jobs)] and third["next"] is None
        assert "secret" not in str(shown) and (await registry.view(jobs[3].id))["output"]["text"] == "secret"
        done = await registry.views(["done", "running"], "text", 50, None)
        assert [job["id"] for job in done["jobs"]] == [jobs[4].id, jobs[3].id, jobs[0].id]
        assert (await registry.views([], "music", 50, None))["jobs"] == []

    use(tmp_path, play)


def test_an_idempotency_key_finds_its_job_for_a_day_and_only_for_the_same_request(tmp_path: Path) -> None:
    def keyed(key: str, created_at: str) -> dict[str, Any]:
        row = new_row("text", "m", {}, "c")
        return {**row, "idempotency_key": key, "request_hash": "h1", "created_at": created_at}

    async def play(registry: JobRegistry, store: JobStore) -> None:
        now = await registry.add(keyed("now", timestamp()))
        await registry.add(keyed("old", timestamp(timedelta(hours=25))))
        again = await registry.add(keyed("old", timestamp(timedelta(hours=23))))
        assert await registry.find_by_key("now", "h1") == now.id
        assert await registry.find_by_key("old", "h1") == again.id, "the newest job of the key counts"
        assert await registry.find_by_key("other", "h1") is None
        with pytest.raises(errors.Validation, match=now.id):
            await registry.find_by_key("now", "h2")
        await now.end("done")
        registry.live.clear()
        assert await registry.find_by_key("now", "h1") == now.id, "an ended job counts as well"

    use(tmp_path, play)


def test_a_killed_server_loses_no_stored_event_and_its_running_job_is_interrupted(tmp_path: Path) -> None:
    ids: dict[str, str] = {}

    async def die(registry: JobRegistry, store: JobStore) -> None:
        running, waiting = await add(registry, "running"), await add(registry)
        for text in ("a", "b", "c"):
            await running.emit("token", {"text": text, "count": 1})
        await running.emit("fallback", {"from": "cuda:0", "to": "cpu", "code": "device_lost", "reason": "x"})
        await running.emit("token", {"text": "d", "count": 1})
        await running.flush()
        await running.emit("token", {"text": "not stored", "count": 1})
        ids.update(running=running.id, waiting=waiting.id)

    async def restart(registry: JobRegistry, store: JobStore) -> None:
        assert list(registry.live) == [ids["waiting"]]
        view = await registry.view(ids["running"])
        assert view["status"] == "interrupted" and view["output"]["text"] == "d" and view["error"]
        followed = await registry.follow(ids["running"])
        assert followed
        events = [event async for event in followed]
        kinds = [event.event for event in events]
        assert kinds == ["queued", "running", *["token"] * 3, "fallback", "token", "interrupted"]
        numbers = [event.id for event in events]
        assert numbers[:-1] == list(range(1, 8)) and numbers[-1] > 8, "the id of the lost event is not used again"
        late = await registry.follow(ids["running"], numbers[-2])
        assert late and [event.event async for event in late] == ["interrupted"]
        assert await registry.follow(ids["running"], numbers[-1]) is None

    use(tmp_path, die, closing=False)
    use(tmp_path, restart)


def test_a_file_of_the_first_version_is_migrated_with_its_jobs(tmp_path: Path) -> None:
    row = new_row("text", "m", {"prompt": "old"}, "c") | {"status": "done", "ended_at": timestamp()}
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as db:
        db.executescript(f"{MIGRATIONS[0]} PRAGMA user_version = 1;")
        marks = ", ".join("?" * len(COLUMNS))
        values = [encode_row(row).get(name) for name in COLUMNS]
        db.execute(f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({marks})", values)
        db.execute("INSERT INTO events VALUES (?, 1, ?)", [row["id"], '[[1, "queued", {}], [2, "done", {}]]'])
        db.commit()

    async def play(registry: JobRegistry, store: JobStore) -> None:
        view = await registry.view(row["id"])
        assert (view["status"], view["request"]) == ("done", {"prompt": "old"})
        assert [event.id for event in await store.events(row["id"])] == [1, 2]
        assert await store.sweep(timestamp(timedelta(days=1)), 10**12) == 0
        assert new_job_id() > row["id"]

    use(tmp_path, play)
    use(tmp_path, play)  # the second start finds nothing to migrate
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_new_ids_sort_after_those_of_a_clock_that_was_ahead() -> None:
    ahead = f"{int(new_job_id()[:11], 16) + 10**9:011x}ffffffffff"
    seed_job_ids(ahead)
    ids = [new_job_id() for _ in range(50)]
    assert ahead < ids[0] and ids == sorted(set(ids))
    seed_job_ids(None)
    assert new_job_id() > ids[-1]


pieces = st.lists(st.sampled_from(["token", "artifact", "fallback", "progress"]), max_size=20)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(pieces)
def test_a_replay_keeps_what_came_after_the_last_fallback(kinds: list[str]) -> None:
    file = {"name": "", "media_type": "audio/wav", "bytes": 1, "url": "/x"}
    data = [{"text": str(number), **file, "name": str(number)} for number in range(len(kinds))]
    events = [Event(number, kind, data[number]) for number, kind in enumerate(kinds)]
    last = max((number for number, kind in enumerate(kinds) if kind == "fallback"), default=-1)
    kept = [(number, kind) for number, kind in enumerate(kinds) if number > last]
    assert replay_text(events) == [str(number) for number, kind in kept if kind == "token"]
    assert [each.name for each in replay_artifacts(events)] == [str(n) for n, kind in kept if kind == "artifact"]


texts = st.text('aé"\\\0\u2028', max_size=4)
values = st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner), max_leaves=5)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.dictionaries(texts, values, max_size=3), st.none() | st.dictionaries(texts, values, max_size=2))
def test_a_row_is_read_as_it_was_written(request: dict[str, Any], receipt: dict[str, Any] | None) -> None:
    row = {"id": "x", "request": request, "receipt": receipt, "error": None, "reserved": 3}
    encoded = encode_row(row)
    assert all(value is None or isinstance(value, str | int) for value in encoded.values())
    assert decode_row(encoded) == row


def test_followers_of_the_bus_resume_by_id_and_get_no_tokens() -> None:
    async def run() -> None:
        bus = EventBus(lambda: 5.0)
        bus.publish("queued", {"n": 0})
        late = aiter(bus.follow())
        pending = asyncio.ensure_future(anext(late))
        await asyncio.sleep(0)
        bus.publish("token", {"text": "x"})
        bus.publish("device", {"n": 1})
        assert (await pending).data == {"n": 1}, "without an id only new events follow"
        bus.close()
        assert [event.data["n"] async for event in bus.follow(0)] == [0, 1]
        assert [event.data["n"] async for event in bus.follow(5000)] == [1]
        assert [event.data["n"] async for event in bus.follow(10**9)] == [0, 1], "an id of a clock that was ahead"

    asyncio.run(run())
