"""Run a child program once: a line of JSON on stdin, lines of JSON on stdout, the last one is the outcome.

Lines `{phase, done, total}` are progress in bytes; the last line is `{ok, …}` or `{error: {code, detail, remedy}}`. The
end of stdin ends such a child and the processes that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable

from backend.child.handle import Spawn
from backend.common.errors import WorkerCrashed, from_code
from backend.common.types import JsonObject, Progress

log = logging.getLogger(__name__)

OnProgress = Callable[[Progress], Awaitable[None]]
Message = JsonObject
_EXIT_TIMEOUT_S = 2.0  # for a child on Windows, where only the child can end the processes that it started


async def run_one_shot(
    spawn: Spawn, arguments: list[str], order: bytes, on_progress: OnProgress, after: Callable[[], None] = lambda: None
) -> Message:
    """Run a child of this interpreter and return its last line; cancelling this call kills the child.

    `arguments`: the program and its arguments. `order` is written to its stdin. `on_progress`: callback for each
    progress line. `after`: callback in a thread when the child has ended; default: none. Raises the error that the
    child reports, WorkerCrashed if it reports none.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[Message | None] = asyncio.Queue()
    process = spawn(sys.executable, arguments)  # in the thread of the loop: see handle.py on the death signal
    stderr: deque[str] = deque(maxlen=20)
    log.info("child program started", extra={"program": arguments[0], "pid": process.pid})
    started_s = loop.time()
    threads = [
        threading.Thread(target=_read_lines, args=(process, loop, lines), daemon=True),
        threading.Thread(target=_read_stderr, args=(process, stderr), daemon=True),
    ]
    for thread in threads:
        thread.start()
    _send_order(process, order)
    last: Message = {}
    estimator = RateEstimator()
    try:
        while (line := await lines.get()) is not None:
            last = line
            if "phase" in line:
                await on_progress(estimator.progress(line, loop.time()))
    finally:
        _kill(process)
        await asyncio.to_thread(_wait_and_close, process, threads)
        await asyncio.to_thread(after)
    duration_s = round(loop.time() - started_s, 1)
    outcome = {"exit_code": process.returncode, "duration_s": duration_s}
    log.info("child program exited", extra={"program": arguments[0], "pid": process.pid, **outcome})
    return _outcome(arguments[0], last, process.returncode, stderr)


def _send_order(process: subprocess.Popen[bytes], order: bytes) -> None:
    assert process.stdin
    with contextlib.suppress(OSError):  # it died at once; its exit code shows that
        process.stdin.write(order)
        process.stdin.flush()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and its process group, unless the child has ended: its id may have been reused."""
    if process.poll() is not None:
        return
    if sys.platform == "win32":
        assert process.stdin
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
        process.kill()
    else:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _outcome(name: str, last: Message, code: int, stderr: deque[str]) -> Message:
    if last.get("ok"):
        return last
    if "error" in last:
        raise from_code(last["error"]["code"], last["error"]["detail"], last["error"]["remedy"])
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    line = f": {stderr[-1]}" if stderr else ""
    raise WorkerCrashed(f"The {name} program exited early with {how}{line}.", "Retry.")


class RateEstimator:
    """Estimates the rate and the remaining time from the progress of the current phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._start_s = 0.0
        self._start_done = 0

    def progress(self, line: Message, now_s: float) -> Progress:
        """Return a line `{phase, done, total}` as Progress. `now_s`: monotonic seconds."""
        phase, done, total = line["phase"], line["done"], line["total"]
        if phase != self._phase:
            self._phase, self._start_s, self._start_done = phase, now_s, done
        new_bytes = done - self._start_done
        elapsed_s = now_s - self._start_s
        per_s = new_bytes / elapsed_s if new_bytes > 0 and elapsed_s > 0 else None
        eta_s = round(max(0.0, (total - done) / per_s), 1) if total and per_s else None
        return Progress(phase, done, total, "bytes", eta_s, None if per_s is None else round(per_s, 1))


def _read_lines(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[Message | None]
) -> None:
    assert process.stdout
    with contextlib.suppress(RuntimeError):  # the loop is closed
        for raw in process.stdout:
            with contextlib.suppress(ValueError):
                line = json.loads(raw)
                if isinstance(line, dict):
                    loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)


def _read_stderr(process: subprocess.Popen[bytes], stderr: deque[str]) -> None:
    assert process.stderr
    for raw in process.stderr:
        if text := raw.decode("utf-8", "replace").strip():
            stderr.append(text[:500])


def _wait_and_close(process: subprocess.Popen[bytes], threads: list[threading.Thread]) -> None:
    """Wait for the end of the child and close its pipes."""
    process.wait()
    for thread in threads:
        thread.join()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
