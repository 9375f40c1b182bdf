"""Starts child processes in a separate thread, so that a slow start does not hold the event loop.

The thread lives as long as the server: Linux sends a child the parent-death signal when the thread that started it
ends.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from backend.child.handle import ChildProcess, ChildStartError, FrameSchema, Spawn, start_child

LIMIT_S = 10.0  # a start takes milliseconds; one from a dead network mount never returns


Started = ChildProcess | subprocess.Popen[bytes]
AnyStarted = TypeVar("AnyStarted", ChildProcess, subprocess.Popen[bytes])


@dataclass(frozen=True)
class _Order:
    start: Callable[[], Started]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


class _Thread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="spawner", daemon=True)
        self.orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            order = self.orders.get()
            child, error = None, None
            try:
                child = order.start()
            except Exception as raised:  # noqa: BLE001 (the caller raises it)
                error = raised
            try:
                order.loop.call_soon_threadsafe(_deliver, order.done, child, error)
            except RuntimeError:  # the event loop is closed
                _discard(child)


def _discard(child: Started | None) -> None:
    """End a child that has no caller."""
    if child:
        child.kill()
    if isinstance(child, subprocess.Popen):
        with child:  # closes its pipes and waits for its end
            pass


def _deliver(done: asyncio.Future[Any], child: Started | None, error: Exception | None) -> None:
    if done.done():  # its caller was cancelled, or gave up
        _discard(child)
    elif child:
        done.set_result(child)
    else:
        done.set_exception(error or ChildStartError("it did not start"))


_threads: list[_Thread] = []  # the last one is in use; the others are blocked by a start that does not return


async def spawn_child(
    spawn: Spawn,
    python: str,
    arguments: list[str],
    schema: FrameSchema | None = None,
    limit_s: float = LIMIT_S,
) -> ChildProcess:
    """Start a program in the interpreter `python`. `schema` checks its frames, optional. Raises ChildStartError."""
    loop = asyncio.get_running_loop()
    return await _started(partial(start_child, spawn, python, arguments, schema, loop), python, limit_s)


async def spawn_process(
    spawn: Spawn, python: str, arguments: list[str], limit_s: float = LIMIT_S
) -> subprocess.Popen[bytes]:
    """Start a program that sends no frames. Raises ChildStartError after `limit_s`, and what `spawn` raises."""
    return await _started(partial(spawn, python, arguments), python, limit_s)


async def _started(start: Callable[[], AnyStarted], python: str, limit_s: float) -> AnyStarted:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[AnyStarted] = loop.create_future()
    if not _threads:
        _threads.append(_Thread())
    thread = _threads[-1]
    thread.orders.put(_Order(start, loop, done))
    try:
        await asyncio.wait({done}, timeout=limit_s)
    finally:
        done.cancel()  # no effect once it is done: else a child that starts later is killed
    if not done.cancelled():
        return done.result()
    if _threads[-1] is thread:
        _threads.append(_Thread())
    raise ChildStartError(f"its interpreter {python} did not start within {limit_s:g} s")
