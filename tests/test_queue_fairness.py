"""The device queue: fairness between callers, shared turns, cancelled waits, and waits in several queues at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.scheduling.device_queue import DeviceQueue, QueueRequest, acquire_first

Arrival = tuple[str, str | None]  # caller and batch key


async def settle() -> None:
    """Let all tasks run until each of them waits."""
    for _ in range(10):
        await asyncio.sleep(0)


class Visitors:
    """Jobs that queue, hold their turn until the test ends it, and leave."""

    def __init__(self, queue: DeviceQueue, max_batch: int = 1) -> None:
        self.queue = queue
        self.max_batch = max_batch
        self.admitted: list[int] = []
        self.holding: list[int] = []
        self.positions: dict[int, list[int]] = {}
        self._exits: dict[int, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def arrive(self, caller: str, batch_key: str | None = None) -> int:
        """Add a job and return its number."""
        number = len(self.tasks)
        self._exits[number], self.positions[number] = asyncio.Event(), []
        self.tasks.append(asyncio.create_task(self._visit(number, caller, batch_key)))
        await settle()
        return number

    async def end(self, number: int) -> None:
        """End the turn of a job."""
        self._exits[number].set()
        await settle()

    async def cancel(self, number: int) -> None:
        """Cancel a job, waiting or not."""
        self.tasks[number].cancel()
        await settle()

    async def drain(self) -> None:
        """End the turns one after another, in the order in which they were taken, until no job is left."""
        while self.holding:
            await self.end(self.holding[0])

    async def _visit(self, number: int, caller: str, batch_key: str | None) -> None:
        async with self.queue.acquire(
            caller, lambda position, _: self.positions[number].append(position), batch_key, lambda: self.max_batch
        ):
            self.admitted.append(number)
            self.holding.append(number)
            try:
                await self._exits[number].wait()
            finally:
                self.holding.remove(number)


def play(act: Callable[[Visitors], Awaitable[None]], max_batch: int = 1) -> None:
    async def run() -> None:
        visitors = Visitors(DeviceQueue("cpu:0"), max_batch)
        async with asyncio.timeout(5):
            await act(visitors)
            await visitors.drain()
            assert all(task.done() for task in visitors.tasks), "every job got a turn or was cancelled"
            assert len(visitors.queue) == 0 and not visitors.queue.is_busy and visitors.queue.is_free()

    asyncio.run(run())


callers = st.lists(st.sampled_from("abcd"), min_size=1, max_size=14)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(callers)
def test_a_caller_with_many_jobs_delays_another_by_one_turn_per_round(arriving: list[str]) -> None:
    async def act(visitors: Visitors) -> None:
        first = await visitors.arrive("holder")
        for caller in arriving:
            await visitors.arrive(caller)
        await visitors.end(first)
        await visitors.drain()
        served = [arriving[number - 1] for number in visitors.admitted[1:]]
        for cut in range(1, len(served) + 1):
            counts = {caller: served[:cut].count(caller) for caller in set(arriving)}
            for caller, count in counts.items():
                is_still_waiting = count < arriving.count(caller)
                assert not is_still_waiting or count + 1 >= max(counts.values()), "a waiting caller is a round behind"

    play(act)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(callers)
def test_the_jobs_of_one_caller_keep_their_order(arriving: list[str]) -> None:
    async def act(visitors: Visitors) -> None:
        for caller in arriving:
            await visitors.arrive(caller)
        await visitors.drain()
        for caller in set(arriving):
            served = [number for number in visitors.admitted if arriving[number] == caller]
            assert served == sorted(served)

    play(act)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", None])), min_size=1, max_size=10),
    st.integers(1, 3),
)
def test_holders_always_share_one_model_and_never_exceed_the_batch(arrivals: list[Arrival], max_batch: int) -> None:
    async def act(visitors: Visitors) -> None:
        for caller, batch_key in arrivals:
            await visitors.arrive(caller, batch_key)
        while visitors.holding:
            keys = [arrivals[number][1] for number in visitors.holding]
            assert len(keys) <= max_batch
            assert len(keys) == 1 or (len(set(keys)) == 1 and keys[0] is not None)
            await visitors.end(visitors.holding[-1])

    play(act, max_batch)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(callers, st.data())
def test_cancelled_waits_leave_no_trace(arriving: list[str], data: st.DataObject) -> None:
    async def act(visitors: Visitors) -> None:
        first = await visitors.arrive("holder")
        numbers = [await visitors.arrive(caller) for caller in arriving]
        leaving = data.draw(st.lists(st.sampled_from(numbers), unique=True))
        for number in leaving:
            await visitors.cancel(number)
        assert len(visitors.queue) == len(numbers) - len(leaving)
        await visitors.end(first)
        await visitors.drain()
        assert sorted(visitors.admitted[1:]) == sorted(set(numbers) - set(leaving))

    play(act)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(callers)
def test_the_last_position_before_a_turn_is_one(arriving: list[str]) -> None:
    async def act(visitors: Visitors) -> None:
        first = await visitors.arrive("holder")
        numbers = [await visitors.arrive(caller) for caller in arriving]
        await visitors.end(first)
        await visitors.drain()
        assert visitors.positions[first] == [], "a job that does not wait has no position"
        for number in numbers:
            assert visitors.positions[number][-1] == 1

    play(act)


def test_a_cancelled_holder_frees_the_queue() -> None:
    async def act(visitors: Visitors) -> None:
        first = await visitors.arrive("a")
        second = await visitors.arrive("b")
        await visitors.cancel(first)
        assert visitors.holding == [second]

    play(act)


def test_a_free_queue_is_not_free_for_a_job_of_another_model() -> None:
    async def act(visitors: Visitors) -> None:
        await visitors.arrive("a", "x")
        queue = visitors.queue
        assert queue.is_free("x", lambda: 2)
        assert not queue.is_free("y", lambda: 2) and not queue.is_free(None, lambda: 2) and not queue.is_free("x")

    play(act, max_batch=2)


def test_an_exception_inside_a_turn_frees_the_queue_and_reaches_the_caller() -> None:
    async def run() -> None:
        queue = DeviceQueue("cpu:0")
        with pytest.raises(ZeroDivisionError):
            async with queue.acquire("a"):
                raise ZeroDivisionError
        assert queue.is_free()

    asyncio.run(run())


def test_a_batch_shortens_the_expected_wait() -> None:
    async def run() -> None:
        queue, expected = DeviceQueue("cpu:0"), dict[str, float | None]()
        async with queue.acquire("a"):
            await asyncio.sleep(0.01)  # the first measured turn
        async with queue.acquire("a"), contextlib.AsyncExitStack():
            for name, key, batch in (("alone", None, 1), ("batched", "x", 4)):
                waits = [
                    asyncio.create_task(_hold(queue, name, key, batch, expected, f"{name}{number}"))
                    for number in range(3)
                ]
                await settle()
                for task in waits:
                    task.cancel()
                await settle()
        alone, batched = expected["alone2"], expected["batched2"]
        assert alone and batched and alone == pytest.approx(3 * batched)

    async def _hold(
        queue: DeviceQueue, caller: str, key: str | None, batch: int, expected: dict[str, float | None], name: str
    ) -> None:
        def note(position: int, expected_s: float | None) -> None:
            expected.setdefault(name, expected_s)

        async with queue.acquire(caller, note, key, lambda: batch):
            pass

    asyncio.run(run())


async def _first(queues: Sequence[DeviceQueue], taken: list[int], positions: list[int]) -> None:
    requests = [QueueRequest(queue) for queue in queues]
    async with acquire_first(requests, "x", lambda position, _: positions.append(position)) as index:
        taken.append(index)
        await settle()


@pytest.mark.parametrize("freed", [0, 1, 2])
def test_a_job_for_several_devices_runs_on_the_one_that_becomes_free_and_leaves_the_other_queues(freed: int) -> None:
    async def run() -> None:
        queues, taken, positions = [DeviceQueue(f"card:{n}") for n in range(3)], list[int](), list[int]()
        holders = [queue.acquire("holder") for queue in queues]
        for holder in holders:
            await holder.__aenter__()
        job = asyncio.create_task(_first(queues, taken, positions))
        await settle()
        assert [len(queue) for queue in queues] == [1, 1, 1] and positions == [1], "one position for all queues"
        await holders[freed].__aexit__(None, None, None)
        await job
        assert taken == [freed] and [len(queue) for queue in queues] == [0, 0, 0]
        assert [queue.is_busy for queue in queues] == [number != freed for number in range(3)]

    asyncio.run(run())


def test_a_job_for_several_devices_reports_its_best_position() -> None:
    async def run() -> None:
        queues, taken, positions = [DeviceQueue("long"), DeviceQueue("short")], list[int](), list[int]()
        async with queues[0].acquire("holder"), queues[1].acquire("holder"):
            crowd = [asyncio.create_task(_first([queues[0]], [], [])) for _ in range(3)]
            crowd += [asyncio.create_task(_first([queues[1]], [], []))]
            await settle()
            job = asyncio.create_task(_first(queues, taken, positions))
            await settle()
            assert positions == [4, 2], "the position in the first queue, then the better one in the second"
        await asyncio.gather(job, *crowd)

    asyncio.run(run())
