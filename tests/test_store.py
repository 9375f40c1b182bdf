"""The history file: consistent after every write, ordered, and clear errors if it cannot be used."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from backend.common.errors import Configuration, DiskFull, Internal
from backend.common.types import Event
from backend.jobs.live_job import new_row
from backend.jobs.store.disk_reserve import RESERVE_BYTES
from backend.jobs.store.sqlite import JobStore
from tests.chaos.disk import Disk


def use(path: Path, play: Callable[[JobStore], Awaitable[None]]) -> None:
    async def once() -> None:
        store = JobStore(path / "jobs.sqlite3")
        await store.open()
        try:
            await play(store)
        finally:
            await store.close()

    asyncio.run(once())


def test_a_job_comes_back_as_it_went_in(tmp_path: Path) -> None:
    row = new_row("text", "m", {"prompt": "héllo 👩‍👩‍👧 \u0000 \x1b[31m"}, "caller")

    async def write(store: JobStore) -> None:
        await store.add(row)

    async def read(store: JobStore) -> None:
        found = await store.job(row["id"])
        assert found and {name: found[name] for name in row} == row
        assert await store.job("other") is None

    use(tmp_path, write)
    use(tmp_path, read)


def test_events_expand_to_what_was_packed(tmp_path: Path) -> None:
    row = new_row("text", "m", {}, "caller")
    events = [Event(number, "token", {"text": str(number)}) for number in (1, 2, 5, 1001)]

    async def play(store: JobStore) -> None:
        await store.add(row)
        await store.update(row["id"], {}, events[:2])
        await store.update(row["id"], {"status": "running"}, events[2:])
        assert await store.events(row["id"]) == events
        await store.delete(row["id"])
        assert await store.events(row["id"]) == []
        await store.update(row["id"], {}, [Event(9, "token", {})])  # late, after the deletion
        assert await store.events(row["id"]) == []

    use(tmp_path, play)


def test_pages_are_newest_first_and_do_not_overlap(tmp_path: Path) -> None:
    rows = [new_row("text" if number % 2 else "load", None, {}, "c") for number in range(7)]

    async def play(store: JobStore) -> None:
        for row in rows:
            await store.add(row)
        first = await store.jobs(limit=3)
        second = await store.jobs(limit=9, before=first[-1]["id"])
        assert [row["id"] for row in first + second] == [row["id"] for row in reversed(rows)]
        assert {row["task"] for row in await store.jobs(task="load")} == {"load"}
        await store.delete(first[-1]["id"])
        assert await store.jobs(limit=9, before=first[-1]["id"]) == second, "the page goes on where it was"
        assert await store.jobs(statuses=["done"]) == []

    use(tmp_path, play)


def test_ids_sort_by_creation() -> None:
    ids = [new_row("text", None, {}, "c")["id"] for _ in range(1000)]
    assert ids == sorted(ids) and len(set(ids)) == 1000


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "jobs.sqlite3") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(Configuration, match="newer Touchstone"):
        use(tmp_path, lambda store: asyncio.sleep(0))


@pytest.mark.parametrize("harm", ["no database", "a page of noise", "damage met in the last run"])
def test_a_damaged_history_is_set_aside_with_its_files_and_a_new_one_begun(tmp_path: Path, harm: str) -> None:
    history = tmp_path / "jobs.sqlite3"
    rows = [new_row("text", "m", {"prompt": "x" * 3000}, "c") for _ in range(50)]
    file = tmp_path / "artifacts" / rows[0]["id"] / "tune.wav"

    async def fill(store: JobStore) -> None:
        for row in rows:
            await store.add(row)
        file.parent.mkdir(parents=True)
        file.write_text("a tune")

    use(tmp_path, fill)
    content = bytearray(history.read_bytes())
    if harm == "no database":
        history.write_text("not a database, but long enough to be looked at " * 50)
    elif harm == "a page of noise":
        content[8192:12288] = b"\xa5" * 4096
        history.write_bytes(content)
    else:
        (tmp_path / "damaged-history").touch()

    async def look(store: JobStore) -> None:
        assert store.set_aside and store.set_aside.parent == tmp_path
        assert (store.set_aside / history.name).exists()
        assert (store.set_aside / "artifacts" / file.parent.name / file.name).read_text() == "a tune"
        assert await store.jobs() == []
        await store.add(rows[0])

    use(tmp_path, look)

    async def again(store: JobStore) -> None:
        assert store.set_aside is None
        assert [row["id"] for row in await store.jobs()] == [rows[0]["id"]]

    use(tmp_path, again)


def test_damage_met_in_use_is_told_and_remembered_for_the_next_start(tmp_path: Path) -> None:
    async def play(store: JobStore) -> None:
        for _ in range(50):
            await store.add(new_row("text", "m", {"prompt": "x" * 3000}, "c"))
        await store._do(lambda: store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        with store.path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * 100_000)
        with pytest.raises(Internal, match="malformed") as caught:
            await store._do(lambda: store._db.execute("PRAGMA shrink_memory").fetchall())
            await store.jobs(limit=1000)
        assert "Restart the server" in caught.value.remedy

    use(tmp_path, play)

    async def look(store: JobStore) -> None:
        assert store.set_aside

    use(tmp_path, look)


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    row, later = new_row("text", "m", {}, "c"), new_row("text", "m", {"prompt": "x" * 200_000}, "c")

    async def play(store: JobStore) -> None:
        await store.add(row)
        pages = await store._do(lambda: store._db.execute("PRAGMA page_count").fetchone()[0])
        await store._do(lambda: store._db.execute(f"PRAGMA max_page_count = {pages + 2}").fetchone())
        with pytest.raises(DiskFull):
            await store.add(later)
        assert await store.job(row["id"])
        assert await store.job(later["id"]) is None

    use(tmp_path, play)


def test_a_full_disk_takes_the_endings_of_accepted_jobs_and_no_new_job(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    disk.mount()
    if not disk.small:
        pytest.skip("only an administrator may mount the small disk that this fills")
    accepted = [new_row("text", "m", {}, "c") for _ in range(20)]
    text = {"output": {"text": "x" * 20_000}}

    async def play(store: JobStore) -> None:
        for row in accepted:
            await store.add(row)
        disk.fill()
        refused = new_row("text", "m", {"prompt": "x" * 20_000}, "c")
        with pytest.raises(DiskFull):
            await store.add(refused)
        for row in accepted:
            await store.update(row["id"], {"status": "done", **text})
        with pytest.raises(DiskFull, match="no space for a job's ending"):
            await store.add(refused)
        disk.free()
        await store.add(refused)
        assert (disk.folder / "reserve").stat().st_size == RESERVE_BYTES
        assert len(await store.jobs(statuses=["done"])) == len(accepted)

    try:
        use(disk.folder, play)
    finally:
        disk.unmount()


def test_the_sweep_forgets_by_age_and_by_size_but_never_what_lives(tmp_path: Path) -> None:
    rows = [{**new_row("text", "m", {"prompt": "x" * 50_000}, "c"), "status": "done"} for _ in range(300)]
    for number, row in enumerate(rows):
        row["ended_at"] = f"2026-01-{1 + number // 30:02}T00:00:00.000Z"
    alive = new_row("text", "m", {"prompt": "y" * 50_000}, "c")

    async def play(store: JobStore) -> None:
        for row in [alive, *rows]:
            await store.add(row)
        before = store.path.stat().st_size
        assert await store.sweep("2026-01-03T00:00:00.000Z", 10**9) == 60
        left = await store.jobs(limit=1000)
        assert len(left) == 241 and left[-1]["id"] == alive["id"]
        assert await store.sweep("2020", 5_000_000) >= 140
        left = await store.jobs(limit=1000)
        assert left[0]["id"] == rows[-1]["id"] and left[-1]["id"] == alive["id"]
        assert store.path.stat().st_size < before / 2, "the file gives the space back"
        assert await store.sweep("2020", 1) == len(left) - 1
        assert [row["id"] for row in await store.jobs()] == [alive["id"]]

    use(tmp_path, play)
