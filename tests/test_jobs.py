"""Live jobs: unique event ids, terminal events stored before they are sent, subscriptions at any time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from backend.common.errors import DiskFull, Interrupted, WorkerCrashed
from backend.common.types import Event
from backend.jobs.live_job import ID_BLOCK, LiveJob, new_row
from backend.jobs.registry import JobRegistry
from backend.jobs.store.schema import Change
from backend.jobs.store.sqlite import JobStore


def use(path: Path, play: Callable[[JobRegistry, JobStore], Awaitable[None]]) -> None:
    async def once() -> None:
        store = JobStore(path / "jobs.sqlite3")
        book = JobRegistry(store)
        await book.open()
        try:
            await play(book, store)
        finally:
            await book.close()

    asyncio.run(once())


async def seen(job: LiveJob, after: int = 0) -> list[Event]:
    return [event async for event in job.follow(after)]


async def token(job: LiveJob, text: str) -> None:
    await job.emit("token", {"text": text, "count": 1})


def test_followers_at_every_point_see_the_rest_once(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        early = asyncio.create_task(seen(job))
        for number in range(20):
            await token(job, str(number))
            await asyncio.sleep(0)
        await job.end("done")
        whole = await early
        assert [event.id for event in whole] == list(range(1, 23)) and whole[-1].event == "done"
        for cut in range(23):
            assert await seen(job, cut) == whole[cut:]
            replay = await book.follow(job.id, cut)
            assert ([event async for event in replay] if replay else []) == whole[cut:]
        book.live.clear()
        for cut in range(22):
            replay = await book.follow(job.id, cut)
            assert replay and [event async for event in replay] == whole[cut:]
        assert await book.follow(job.id, 22) is None

    use(tmp_path, play)


def test_ids_after_a_crash_are_new(tmp_path: Path) -> None:
    shown: list[int] = []

    async def crash(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        await job.set_status("running", {})
        for _ in range(ID_BLOCK + 500):
            await token(job, "x")
        shown.extend(event.id for event in job.events)
        book.live.clear()  # what was not written is lost, as with kill -9

    async def restart(book: JobRegistry, store: JobStore) -> None:
        row = (await store.jobs())[0]
        assert row["status"] == "interrupted" and row["error"]["code"] == "interrupted"
        last = (await store.events(row["id"]))[-1]
        assert last.event == "interrupted" and last.id > max(shown)

    use(tmp_path, crash)
    use(tmp_path, restart)


def test_partial_text_survives_a_crash(tmp_path: Path) -> None:
    async def crash(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        await job.set_status("running", {})
        await token(job, "lost by the fallback")
        await job.emit("fallback", {"from": "a", "to": "b", "code": "c", "reason": "d"})
        await token(job, "kept")
        await job.flush()
        book.live.clear()

    async def restart(book: JobRegistry, store: JobStore) -> None:
        assert (await store.jobs())[0]["output"]["text"] == "kept"

    use(tmp_path, crash)
    use(tmp_path, restart)


def test_queued_jobs_come_back_in_order(tmp_path: Path) -> None:
    rows = [new_row("text", "m", {}, "c") for _ in range(5)]

    async def crash(book: JobRegistry, store: JobStore) -> None:
        for row in rows:
            await book.add(row)
        book.live.clear()

    async def restart() -> list[str]:
        book = JobRegistry(JobStore(tmp_path / "jobs.sqlite3"))
        queued = await book.open()
        await book.close()
        return [job.id for job in queued]

    use(tmp_path, crash)
    assert asyncio.run(restart()) == [row["id"] for row in rows]


def test_an_ending_is_stored_before_it_is_seen_and_happens_once(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))

        async def look() -> None:
            async for event in job.follow():
                if event.event == "error":
                    row = await store.job(job.id)
                    assert row and row["status"] == "error"

        looking = asyncio.create_task(look())
        await job.end("error", WorkerCrashed("It died.", "Again.").problem())
        await job.end("done")
        await looking
        assert job.status == "error" and [event.event for event in job.events] == ["queued", "error"]

    use(tmp_path, play)


def test_who_comes_back_while_the_ending_is_stored_still_gets_it(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        ending = asyncio.create_task(job.end("done"))
        await asyncio.sleep(0)
        assert job.status == "done" and job.events[-1].event == "queued"
        events = await book.follow(job.id, job.events[-1].id)
        assert events is not None, "204 would tell that the end was seen"
        assert [event.event async for event in events] == ["done"]
        await ending
        assert await book.follow(job.id, job.events[-1].id) is None

    use(tmp_path, play)


def test_a_full_disk_at_the_end_is_told_and_made_up_for(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        await job.set_status("running", {})
        await token(job, "x" * 500_000)

        def limit(pages: int) -> None:
            store._db.execute(f"PRAGMA max_page_count = {pages}").fetchone()

        await store._do(lambda: limit(1))
        await job.end("done")
        assert job.status == "error" and job.error and job.error.code == "disk_full"
        assert (await seen(job))[-1].data["code"] == "disk_full"
        await book._flush()
        assert book.storage_error and book.storage_error.code == "disk_full"
        await store._do(lambda: limit(1_000_000))
        await book._flush()
        assert book.storage_error is None and job.id not in book.live
        row = await store.job(job.id)
        assert row and row["status"] == "error" and row["error"]["code"] == "disk_full"

    use(tmp_path, play)


def test_a_job_is_stored_with_its_first_event(tmp_path: Path) -> None:
    """A server killed at once after the acceptance leaves a history that begins as callers saw it begin."""

    async def crash(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        assert await store.events(job.id) == job.events
        assert [(event.event, event.data["position"]) for event in job.events] == [("queued", 1)]
        book.live.clear()

    use(tmp_path, crash)


def test_jobs_added_at_once_have_places_of_their_own(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        jobs = await asyncio.gather(*(book.add(new_row("text", "m", {}, "c")) for _ in range(5)))
        assert [job.events[0].data["position"] for job in jobs] == [1, 2, 3, 4, 5]

    use(tmp_path, play)


def test_a_place_in_the_queue_is_written_with_the_next_step_alone(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        job.set_queue_position(2, None)
        job.set_queue_position(1, None)
        assert not job.dirty
        await job.set_status("loading", {})
        assert [event.event for event in await store.events(job.id)] == ["queued", "progress", "progress", "loading"]

    use(tmp_path, play)


def test_a_job_that_waits_over_several_restarts_uses_no_id_twice(tmp_path: Path) -> None:
    row = new_row("text", "m", {}, "c")
    shown: list[Event] = []

    async def accept(book: JobRegistry, store: JobStore) -> None:
        await book.add(row)
        book.live.clear()

    async def wait(write: bool) -> None:
        book = JobRegistry(JobStore(tmp_path / "jobs.sqlite3"))
        (job,) = await book.open()
        before = len(job.events)
        await job.emit("progress", {"done": 1})
        await job.emit("progress", {"done": 2})
        shown.extend(job.events[before:])
        if not write:
            book.live.clear()
        await book.close()

    use(tmp_path, accept)
    for write in (True, True, False, False, True):
        asyncio.run(wait(write))
    ids = [event.id for event in shown]
    assert ids == sorted(set(ids)) and len(ids) == 10

    async def look(book: JobRegistry, store: JobStore) -> None:
        kept = await store.events(row["id"])
        assert [event.id for event in kept] == [1, *ids[:4], *ids[8:]]

    use(tmp_path, look)


def test_a_write_that_fails_or_is_left_in_the_middle_loses_no_event_and_doubles_none(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        await job.set_status("running", {})
        hold = threading.Event()

        def refuse() -> None:
            hold.wait()
            store._db.execute("PRAGMA query_only = ON")

        def allow() -> None:
            store._db.execute("PRAGMA query_only = OFF")

        for failing in (True, False):
            await token(job, "a")
            hold.clear()
            blocked = asyncio.create_task(store._do(refuse if failing else hold.wait))
            await asyncio.sleep(0)
            first = asyncio.create_task(job.flush())
            await asyncio.sleep(0)
            again = asyncio.create_task(store._do(allow))
            await token(job, "b")
            second = asyncio.create_task(job.flush())
            await asyncio.sleep(0)
            if not failing:
                first.cancel()
            hold.set()
            await asyncio.gather(blocked, first, again, second, return_exceptions=True)
        await job.end("done")
        assert await store.events(job.id) == job.events
        assert "".join(event.data.get("text", "") for event in job.events) == "abab"

    use(tmp_path, play)


def test_an_interruption_that_cannot_be_stored_at_the_start_is_made_up_for(tmp_path: Path) -> None:
    async def crash(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        await job.set_status("running", {})
        book.live.clear()

    async def restart() -> str:
        store = JobStore(tmp_path / "jobs.sqlite3")
        book = JobRegistry(store)
        update, refused = store.update_all, [DiskFull("Full.", "Free some.")]

        async def refuse_once(*arguments: Any, **more: Any) -> None:
            if refused:
                raise refused.pop()
            await update(*arguments, **more)

        store.update_all = refuse_once  # type: ignore[method-assign]
        await book.open()
        assert not refused
        (job,) = (await book.views([], None, 1, None))["jobs"]
        assert job["status"] == "interrupted"
        await book._flush()
        row = await store.job(job["id"])
        await book.close()
        assert row
        return str(row["status"])

    use(tmp_path, crash)
    assert asyncio.run(restart()) == "interrupted"


def test_what_comes_while_the_server_stops_is_kept_for_the_next_start_or_refused_in_words(tmp_path: Path) -> None:
    async def late(book: JobRegistry, store: JobStore) -> LiveJob:
        closing = asyncio.create_task(book.close())
        job = await book.add(new_row("text", "m", {}, "c"))

        async def work() -> None:
            raise AssertionError("nothing may begin any more")

        book.supervise(job, work())
        await asyncio.wait_for(job.ended.wait(), 5)  # those who wait for it are let go
        await closing
        with pytest.raises(Interrupted, match="stopp"):
            await book.add(new_row("text", "m", {}, "c"))
        with pytest.raises(Interrupted):
            await book.view("other")
        return job

    async def play() -> None:
        store = JobStore(tmp_path / "jobs.sqlite3")
        book = JobRegistry(store)
        await book.open()
        job = await late(book, store)
        assert job.status == "queued"
        again = JobRegistry(JobStore(tmp_path / "jobs.sqlite3"))
        assert [queued.id for queued in await again.open()] == [job.id]
        await again.close()

    asyncio.run(play())


def test_an_ended_job_is_kept_until_its_ending_is_stored_even_while_a_write_is_under_way(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        update, hold, calls = store.update_all, asyncio.Event(), 0

        async def refuse_twice(*arguments: Any, **more: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                await hold.wait()
            if calls <= 2:
                raise DiskFull("Full.", "Free some.")
            await update(*arguments, **more)

        async def flush_at_once() -> None:
            await job.ended.wait()
            await book._flush()

        async def work() -> None:
            raise WorkerCrashed("It died.", "Again.")

        assert book._flusher
        book._flusher.cancel()  # the test flushes itself
        flushing = asyncio.create_task(flush_at_once())
        store.update_all = refuse_twice  # type: ignore[method-assign]
        book.supervise(job, work())
        while job.id in book._tasks:
            await asyncio.sleep(0)
        hold.set()
        await flushing
        assert calls == 2 and job.id in book.live
        assert (await book.view(job.id))["status"] == "error"
        await book._flush()
        row = await store.job(job.id)
        assert row and row["status"] == "error" and job.id not in book.live
        assert (await store.events(job.id))[-1].event == "error"

    use(tmp_path, play)


def test_a_job_that_is_ending_is_kept_between_the_write_of_its_events_and_that_of_its_ending(tmp_path: Path) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        job = await book.add(new_row("text", "m", {}, "c"))
        await token(job, "x")
        update, hold, calls = store.update_all, asyncio.Event(), 0

        async def refuse_the_second(*arguments: Any, **more: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                await hold.wait()
            if calls == 2:
                raise DiskFull("Full.", "Free some.")
            await update(*arguments, **more)

        assert book._flusher
        book._flusher.cancel()
        store.update_all = refuse_the_second  # type: ignore[method-assign]
        flushing = asyncio.create_task(book._flush())
        await asyncio.sleep(0)
        ending = asyncio.create_task(job.end("done"))
        await asyncio.sleep(0)
        hold.set()
        await asyncio.gather(flushing, ending)
        assert calls == 2 and job.id in book.live
        await book._flush()
        row = await store.job(job.id)
        assert row and row["status"] == "error" and job.id not in book.live

    use(tmp_path, play)


def test_what_several_jobs_have_to_write_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(book: JobRegistry, store: JobStore) -> None:
        jobs = [await book.add(new_row("text", "m", {}, "c")) for _ in range(3)]
        written: list[list[str]] = []
        done, write = asyncio.Event(), store.update_all

        async def watched(changes: Iterable[Change]) -> None:
            changes = list(changes)
            await write(changes)
            written.append([job_id for job_id, _, _ in changes])
            done.set()

        monkeypatch.setattr(store, "update_all", watched)
        for job in jobs:
            await token(job, "stone ")
        await asyncio.wait_for(done.wait(), 30)
        assert written == [[job.id for job in jobs]]
        assert [(await store.events(job.id))[-1].data["text"] for job in jobs] == ["stone "] * 3

    use(tmp_path, play)
