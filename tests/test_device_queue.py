"""The device queue: one turn at a time, fair between callers, and no turn lost by a cancel."""

from __future__ import annotations

import asyncio
import contextlib
import random

from backend.scheduling.device_queue import DeviceQueue, QueueRequest, acquire_first


async def _queue(lane: DeviceQueue, callers: str, order: list[str]) -> list[asyncio.Task[None]]:
    async def take(name: str) -> None:
        async with lane.acquire(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    tasks = []
    for number, caller in enumerate(callers):
        tasks.append(asyncio.create_task(take(f"{caller}{number}")))
        await asyncio.sleep(0)
    return tasks


def test_turns_go_round_between_callers() -> None:
    async def play() -> list[str]:
        lane, order = DeviceQueue("x"), list[str]()
        async with lane.acquire("holder"):
            tasks = await _queue(lane, "aaaabc", order)
            assert len(lane) == 6
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(play()) == ["a0", "b4", "c5", "a1", "a2", "a3"]


def test_one_turn_at_a_time() -> None:
    async def play() -> int:
        lane, inside, most = DeviceQueue("x"), 0, 0

        async def take(caller: str) -> None:
            nonlocal inside, most
            async with lane.acquire(caller):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(take(str(number % 5)) for number in range(50)))
        assert len(lane) == 0 and not lane.is_busy
        return most

    assert asyncio.run(play()) == 1


def test_a_cancelled_wait_gives_its_place_up() -> None:
    async def play() -> list[str]:
        lane, order = DeviceQueue("x"), list[str]()
        async with lane.acquire("holder"):
            tasks = await _queue(lane, "abc", order)
            tasks[1].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await tasks[1]
            assert len(lane) == 2
        await asyncio.gather(tasks[0], tasks[2])
        return order

    assert asyncio.run(play()) == ["a0", "c2"]


def test_a_cancel_at_the_moment_of_the_turn_passes_it_on() -> None:
    async def play() -> list[str]:
        lane, order = DeviceQueue("x"), list[str]()
        async with lane.acquire("holder"):
            tasks = await _queue(lane, "ab", order)
        tasks[0].cancel()  # the turn is given, but not yet taken
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]
        await asyncio.wait_for(tasks[1], 1)
        assert not lane.is_busy
        return order

    assert asyncio.run(play())[-1] == "b1"


def test_positions_count_in_the_order_of_turns() -> None:
    async def play() -> dict[str, int]:
        lane, positions = DeviceQueue("x"), dict[str, int]()

        async def take(name: str) -> None:
            def note(position: int, expected_s: float | None) -> None:
                positions.setdefault(name, position)

            async with lane.acquire(name[0], note):
                pass

        async with lane.acquire("holder"):
            tasks = []
            for name in ("a1", "a2", "b1"):
                tasks.append(asyncio.create_task(take(name)))
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return positions

    assert asyncio.run(play()) == {"a1": 1, "a2": 2, "b1": 2}


def test_jobs_of_one_model_share_a_turn_up_to_its_slots() -> None:
    async def play() -> int:
        lane, inside, most = DeviceQueue("x"), 0, 0

        async def take(number: int) -> None:
            nonlocal inside, most
            async with lane.acquire(str(number), batch_key="model", max_batch=lambda: 3):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(take(number) for number in range(10)))
        return most

    assert asyncio.run(play()) == 3


def test_slots_that_a_load_reveals_admit_those_who_wait() -> None:
    async def play() -> tuple[list[int], list[int]]:
        lane, inside, slots = DeviceQueue("x"), list[int](), 1
        positions: list[int] = []

        async def take(number: int, done: asyncio.Event) -> None:
            note = (lambda position, _: positions.append(position)) if number == 3 else lambda position, _: None
            async with lane.acquire(str(number), note, batch_key="model", max_batch=lambda: slots):
                inside.append(number)
                await done.wait()

        done = asyncio.Event()
        tasks = [asyncio.create_task(take(number, done)) for number in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert inside == [0]
        slots = 3
        lane.admit()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = list(inside)
        done.set()
        await asyncio.gather(*tasks)
        return before, positions

    assert asyncio.run(play()) == ([0, 1, 2], [3, 1])


def test_another_model_is_not_overtaken_for_ever() -> None:
    async def play() -> list[str]:
        lane, order = DeviceQueue("x"), list[str]()

        async def take(name: str, share: str | None) -> None:
            async with lane.acquire(name, batch_key=share, max_batch=lambda: 2):
                order.append(name)
                await asyncio.sleep(0.01)

        names = [("a", "popular"), ("b", "rare"), ("c", "popular"), ("d", None), ("e", "popular")]
        await asyncio.gather(*(take(name, share) for name, share in names))
        assert not lane.is_busy and len(lane) == 0
        return order

    assert asyncio.run(play()) == ["a", "b", "c", "d", "e"]


def test_who_waits_is_told_when_it_moves_and_how_long_it_may_take() -> None:
    async def play() -> list[tuple[int, float | None]]:
        lane, told = DeviceQueue("x"), list[tuple[int, float | None]]()

        async def take(name: str) -> None:
            async with lane.acquire(name):
                await asyncio.sleep(0.02)

        async def watch() -> None:
            async with lane.acquire("watcher", lambda position, expected_s: told.append((position, expected_s))):
                pass

        others = [asyncio.create_task(take(name)) for name in "abc"]
        await asyncio.sleep(0)
        await asyncio.gather(watch(), *others)
        return told

    told = asyncio.run(play())
    assert [position for position, _ in told] == [3, 2, 1]
    assert told[0][1] is None and all(expected and expected > 0 for _, expected in told[1:])


def test_the_place_told_on_arrival_is_the_place_in_the_order_of_turns() -> None:
    async def play(callers: str) -> tuple[int, int]:
        lane, order, told = DeviceQueue("x"), list[str](), list[int]()

        async def arrive_last(caller: str) -> None:
            async with lane.acquire(caller, lambda position, _: told.append(position)):
                order.append("last")

        async with lane.acquire("holder"):
            tasks = await _queue(lane, callers[:-1], order)
            tasks.append(asyncio.create_task(arrive_last(callers[-1])))
            await asyncio.sleep(0)
            place = told[0]
        await asyncio.gather(*tasks)
        return place, order.index("last") + 1

    dice = random.Random(5)
    for count in range(1, 40):
        place, served = asyncio.run(play("".join(dice.choices("abcd", k=count))))
        assert place == served


def test_jobs_that_may_run_on_any_of_some_lanes_fill_them_all() -> None:
    async def play() -> list[int]:
        lanes, taken, told, release = [DeviceQueue("x"), DeviceQueue("y")], list[int](), list[int](), asyncio.Event()

        async def take(name: str) -> None:
            wanted = [QueueRequest(lane) for lane in lanes]
            async with acquire_first(wanted, name, lambda position, expected_s: told.append(position)) as number:
                taken.append(number)
                await release.wait()

        tasks = [asyncio.create_task(take(str(each))) for each in range(4)]
        while [len(lane) for lane in lanes] != [2, 2]:  # the others wait in both
            await asyncio.sleep(0)
        assert taken == [0, 1] and told == [1, 2], "each is told its place once, not once for each lane"
        release.set()
        await asyncio.gather(*tasks)
        assert [len(lane) for lane in lanes] == [0, 0] and not any(lane.is_busy for lane in lanes)
        return taken

    assert len(asyncio.run(play())) == 4


def test_what_comes_at_the_same_moment_is_given_back() -> None:
    async def play() -> None:
        lanes = [DeviceQueue("x"), DeviceQueue("y")]
        holding = contextlib.AsyncExitStack()
        for lane in lanes:
            await holding.enter_async_context(lane.acquire("holder"))

        async def take() -> None:
            async with acquire_first([QueueRequest(lane) for lane in lanes], "a", lambda *place: None) as number:
                assert [lane.is_busy for lane in lanes].count(True) == 1 and lanes[number].is_busy

        task = asyncio.create_task(take())
        while not all(len(lane) for lane in lanes):
            await asyncio.sleep(0)
        await holding.aclose()  # both come free before the job has looked
        await task
        assert not any(lane.is_busy for lane in lanes)

    asyncio.run(play())
