"""Children that do one errand and tell of it in lines of JSON on stdout; the last line is the outcome.

`{phase, done, total}` lines are progress in bytes; at the end `{ok, …}` or `{error: {code, detail, remedy}}`. The end
of stdin ends such a child and what it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from backend.child.handle import Spawn
from backend.common.errors import WorkerCrashed, from_code
from backend.common.types import Progress

OnProgress = Callable[[Progress], Awaitable[None]]
Line = dict[str, Any]
_GOOD_BYE_S = 2.0  # for a child on Windows, where none but itself can end what it has started


async def run_one_shot(
    spawn: Spawn, words: list[str], said: bytes, on_progress: OnProgress, after: Callable[[], None] = lambda: None
) -> Line:
    """Runs a child of this interpreter to its end and returns its last line; leaving early ends it.

    `said` is what it reads first; `after` runs in a thread when it is gone. Raises what the child says, and
    WorkerCrashed if it says nothing.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[Line | None] = asyncio.Queue()
    process = spawn(sys.executable, words)  # here, in the loop's thread: see children.py on the death signal
    complaints: deque[str] = deque(maxlen=20)
    threads = [
        threading.Thread(target=_read_lines, args=(process, loop, lines), daemon=True),
        threading.Thread(target=_read_complaints, args=(process, complaints), daemon=True),
    ]
    for thread in threads:
        thread.start()
    _tell(process, said)
    last: Line = {}
    pace = RateEstimator()
    try:
        while (line := await lines.get()) is not None:
            last = line
            if "phase" in line:
                await on_progress(pace.progress(line, loop.time()))
    finally:
        _end(process)
        await asyncio.to_thread(_gone, process, threads)
        await asyncio.to_thread(after)
    return _outcome(words[0], last, process.returncode, complaints)


def _tell(process: subprocess.Popen[bytes], said: bytes) -> None:
    assert process.stdin
    with contextlib.suppress(OSError):  # it died at once, which its exit code tells
        process.stdin.write(said)
        process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the child and its group; after its own end that group may have other members no more."""
    if process.poll() is not None:
        return
    if sys.platform == "win32":
        assert process.stdin
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GOOD_BYE_S)
        process.kill()
    else:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _outcome(name: str, last: Line, code: int, complaints: deque[str]) -> Line:
    if last.get("ok"):
        return last
    if "error" in last:
        raise from_code(last["error"]["code"], last["error"]["detail"], last["error"]["remedy"])
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    telling = f": {complaints[-1]}" if complaints else ""
    raise WorkerCrashed(f"The {_NAMES.get(name, name)} program ended early with {how}{telling}.", "Try it again.")


_NAMES = {"fetch": "download", "install": "installation"}


class RateEstimator:
    """Tells the rate, and guesses the time left, from what came so far in the same phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._since_s = 0.0
        self._first = 0

    def progress(self, line: Line, now_s: float) -> Progress:
        """The child's line as Progress."""
        phase, done, total = line["phase"], line["done"], line["total"]
        if phase != self._phase:
            self._phase, self._since_s, self._first = phase, now_s, done
        came = done - self._first
        elapsed_s = now_s - self._since_s
        per_s = came / elapsed_s if came > 0 and elapsed_s > 0 else None
        eta_s = round(max(0.0, (total - done) / per_s), 1) if total and per_s else None
        return Progress(phase, done, total, "bytes", eta_s, None if per_s is None else round(per_s, 1))


def _read_lines(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[Line | None]
) -> None:
    assert process.stdout
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        for raw in process.stdout:
            with contextlib.suppress(ValueError):
                line = json.loads(raw)
                if isinstance(line, dict):
                    loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)


def _read_complaints(process: subprocess.Popen[bytes], complaints: deque[str]) -> None:
    assert process.stderr
    for raw in process.stderr:
        if text := raw.decode("utf-8", "replace").strip():
            complaints.append(text[:500])


def _gone(process: subprocess.Popen[bytes], threads: list[threading.Thread]) -> None:
    """Waits for the child's end and closes what is left of it."""
    process.wait()
    for thread in threads:
        thread.join()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
