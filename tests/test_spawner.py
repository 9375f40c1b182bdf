"""Starting child processes off the event loop: errors, starts that never return, callers that are cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from backend.child import spawner
from backend.child.handle import ChildStartError
from backend.child.one_shot import run_one_shot
from backend.child.spawner import spawn_child, spawn_process
from backend.common.errors import WorkerCrashed
from backend.common.types import Progress
from backend.scheduling.card_sensors import SensorProcess
from tests.faulty import faulty

CARD = "pci:0000:01:00.0"


def sleeper(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    code = "import sys; sys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


def test_a_start_that_fails_is_raised() -> None:
    def failing(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        raise PermissionError(13, "Permission denied", python)

    with pytest.raises(ChildStartError, match="Permission denied"):
        asyncio.run(spawn_child(failing, "python", []))


def test_a_start_of_a_program_without_frames_does_not_hold_the_loop_either() -> None:
    """The program that starts after all has no caller: it is ended, and its pipes are closed."""
    block = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def blocked(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        block.wait(30)
        started.append(sleeper(python, arguments))
        return started[-1]

    async def play() -> None:
        with pytest.raises(ChildStartError, match="did not start within 0.05 s"):
            await spawn_process(blocked, "python", [], limit_s=0.05)
        block.set()
        until = time.monotonic() + 10
        while not (started and started[0].returncode is not None) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert started[0].returncode is not None and started[0].stdin and started[0].stdin.closed

    asyncio.run(play())


def test_a_one_shot_program_starts_off_the_event_loop() -> None:
    threads: list[int] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        threads.append(threading.get_ident())
        raise PermissionError(13, "Permission denied", python)

    with pytest.raises(WorkerCrashed, match="could not be started: PermissionError"):
        asyncio.run(run_one_shot(spawn, ["install"], b"{}", ignore_progress))
    assert threads != [threading.get_ident()]


async def ignore_progress(progress: Progress) -> None:
    """Ignore it."""


def test_a_start_that_does_not_return_holds_neither_the_loop_nor_later_starts() -> None:
    block = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def blocked(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        block.wait(30)
        started.append(sleeper(python, arguments))
        return started[-1]

    async def play() -> None:
        with pytest.raises(ChildStartError, match="did not start within 0.05 s"):
            await spawn_child(blocked, "python", [], limit_s=0.05)
        child = await spawn_child(sleeper, "python", [])
        child.kill()
        await child.ended()
        block.set()
        until = time.monotonic() + 10
        while not (started and started[0].poll() is not None) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert started[0].poll() is not None, "the late child is killed"

    asyncio.run(play())
    assert len(spawner._threads) >= 2


def test_a_child_whose_caller_was_cancelled_is_killed() -> None:
    started: list[subprocess.Popen[bytes]] = []
    go = threading.Event()

    def slow(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        go.wait(10)
        started.append(sleeper(python, arguments))
        return started[-1]

    async def play() -> None:
        task = asyncio.ensure_future(spawn_child(slow, "python", []))
        await asyncio.sleep(0)
        task.cancel()
        go.set()
        until = time.monotonic() + 10
        while not (started and started[0].poll() is not None) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert started[0].poll() is not None

    asyncio.run(play())


SENSORS = """
import json, struct, sys, time
def send(frame):
    text = json.dumps(frame).encode()
    sys.stdout.buffer.write(struct.pack("!II", len(text), 0) + text); sys.stdout.buffer.flush()
lengths = sys.stdin.buffer.read(8)
while lengths:
    request = json.loads(sys.stdin.buffer.read(struct.unpack("!II", lengths)[0]))
    ANSWER
    lengths = sys.stdin.buffer.read(8)
"""


def sensors(answer: str, idle_s: float = 30) -> tuple[SensorProcess, list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        assert arguments == ["survey", "sensors"]
        pipe = subprocess.PIPE
        code = SENSORS.replace("ANSWER", answer)
        started.append(subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    return SensorProcess(start, 10, idle_s), started


def test_one_child_reads_all_sensors_and_ends_when_idle() -> None:
    process, started = sensors('send({"op": "reading", "value": 7})', idle_s=0.01)
    assert process.read("free_bytes", CARD) == 7 and process.read("free_bytes", "cpu:0") is None
    until = time.monotonic() + 10
    while started[0].poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert started[0].poll() is not None and process.read("power_w", CARD) == 7 and len(started) == 2
    process._end_idle()


@pytest.mark.parametrize(
    "answer", ["sys.exit(3)", "send({'op': 'reading', 'value': 'x'})", "print('no frame', flush=True)"]
)
def test_a_sensor_child_that_fails_means_unknown(answer: str) -> None:
    process, _ = sensors(answer)
    assert process.read("energy_j", CARD) is None
    process._end_idle()


def test_a_sensor_that_never_answers_costs_its_timeout_only() -> None:
    process, started = sensors("time.sleep(3600)")
    process._limit_s = 0.5
    began = time.monotonic()
    assert process.read("free_bytes", CARD) is None and time.monotonic() - began < 5
    assert started[0].wait(10) is not None


def test_the_real_program_answers_for_a_card_that_is_not_there() -> None:
    from backend.child.handle import spawn

    process = SensorProcess(spawn, 30)
    assert process.read("free_bytes", "pci:ffff:ff:1f.7") is None and process._process is not None
    process._end_idle()


def test_a_faulty_child_is_unknown_too() -> None:
    process = SensorProcess(faulty("dies"), 5)
    assert process.read("free_bytes", CARD) is None
