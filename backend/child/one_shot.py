"""Run a child program once: a line of JSON on stdin, lines of JSON on stdout, the last one is the outcome.

Lines `{phase, done, total}` are progress in bytes; the last line is `{ok, …}` or `{error: {code, detail, remedy}}`. The
end of stdin ends such a child and the processes that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from backend.child.handle import ChildStartError, Spawn, open_pipe
from backend.child.process_end import ProcessEnd
from backend.child.spawner import spawn_process
from backend.common.clean_text import clean, clean_data
from backend.common.errors import WorkerCrashed, from_child
from backend.common.types import JsonObject, Progress

log = logging.getLogger(__name__)

OnProgress = Callable[[Progress], Awaitable[None]]
Message = JsonObject
_EXIT_TIMEOUT_S = 2.0  # for a child on Windows, where only the child can end the processes that it started
_LINE_LIMIT = 16 * 1024 * 1024  # a lock file is the longest part of a line
_WAITING_LINES = 100  # not yet handled; a child that writes more waits
_FILES = ("path", "python", "lock", "libraries")  # fields that keep every character: they name or fill files


async def run_one_shot(
    spawn: Spawn,
    arguments: list[str],
    order: bytes,
    on_progress: OnProgress,
    after: Callable[[], None] = lambda: None,
    result: type | None = None,
) -> Message:
    """Run a child of this interpreter and return its last line; cancelling this call kills the child.

    `arguments`: the program and its arguments. `order` is written to its stdin. `on_progress`: callback for each
    progress line. `after`: callback in a thread when the child has ended; default: none. `result`: optional, the
    TypedDict of the last line. Raises the error that the child reports, WorkerCrashed if it reports none or if its
    lines are malformed.
    """
    loop = asyncio.get_running_loop()
    try:
        process = await spawn_process(spawn, sys.executable, arguments)
    except ChildStartError as error:
        raise WorkerCrashed(f"The {arguments[0]} program could not be started: {error}.", "Retry.") from error
    except Exception as error:  # OSError, MemoryError, RuntimeError: no thread
        why = clean(f"{type(error).__name__}: {error}")
        raise WorkerCrashed(f"The {arguments[0]} program could not be started: {why}.", "Retry.") from error
    lines = _Lines(process, loop)
    log.info("child program started", extra={"program": arguments[0], "pid": process.pid})
    started_s = loop.time()
    last: Message = {}
    estimator = RateEstimator()
    try:
        lines.start(order)
        while (line := await lines.receive()) is not None:
            if invalid := _line_error(line, result):
                raise WorkerCrashed(f"The {arguments[0]} program sent an invalid line: {invalid}.", "Retry.")
            last = line
            if "phase" in line:
                await on_progress(estimator.progress(line, loop.time()))
    finally:
        _kill(process)
        await asyncio.to_thread(lines.close)
        await asyncio.to_thread(after)
    duration_s = round(loop.time() - started_s, 1)
    outcome = {"exit_code": process.returncode, "duration_s": duration_s}
    log.info("child program exited", extra={"program": arguments[0], "pid": process.pid, **outcome})
    return _outcome(arguments[0], last, process.returncode, lines.stderr)


def _line_error(line: Message, result: type | None) -> str | None:
    """Return why a line is malformed, as a clause; None if it is not."""
    if "phase" in line:
        figures = [line.get("done"), *([] if line.get("total") is None else [line["total"]])]
        are_sizes = all(_fits(figure, float) and 0 <= figure < 2**63 for figure in figures)
        if isinstance(line["phase"], str) and "total" in line and are_sizes:
            return None
        return "`phase`, `done` or `total` is missing or of a wrong type"
    if "error" in line:
        error = line["error"]
        is_complete = isinstance(error, dict) and all(
            _fits(error.get(key), str) for key in ("code", "detail", "remedy")
        )
        return None if is_complete else "`error` has no code, detail and remedy"
    if line.get("ok") is True and result:
        wrong = next((key for key, hint in get_type_hints(result).items() if not _fits(line.get(key), hint)), None)
        return f"`{wrong}` is missing or of a wrong type" if wrong else None
    return None


def _fits(value: object, hint: Any) -> bool:
    """Return whether a JSON value is of a type: a plain one, a list, or a union of such."""
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(item, get_args(hint)[0]) for item in value)
    if is_typeddict(hint):
        return isinstance(value, dict) and all(_fits(value.get(key), of) for key, of in get_type_hints(hint).items())
    if get_args(hint):
        return any(_fits(value, option) for option in get_args(hint))
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


class _Lines:
    """The lines of a child, cleaned, and the last lines of its stderr, read by two threads."""

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._loop = loop
        self._end = ProcessEnd(process)
        self._lines: asyncio.Queue[Message | None] = asyncio.Queue()
        self._places = threading.Semaphore(_WAITING_LINES)
        self._is_closing = False
        self._threads: list[threading.Thread] = []
        self.stderr: deque[str] = deque(maxlen=20)

    def start(self, order: bytes) -> None:
        """Start the threads, and one that writes the order. Raises WorkerCrashed if the server has no thread."""
        for work, arguments in ((self._read_stderr, ()), (self._read, ()), (_send_order, (self._process, order))):
            thread = threading.Thread(target=work, args=arguments, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                raise WorkerCrashed(f"The server has no thread for a child program ({error}).", "Retry.") from error
            self._threads.append(thread)

    async def receive(self) -> Message | None:
        """Return the next line, None at the end."""
        line = await self._lines.get()
        self._places.release()
        return line

    def close(self) -> None:
        """Wait for the end of the child, kill what it started, and close its pipes."""
        self._is_closing = True
        self._places.release(_WAITING_LINES)
        self._end.wait(math.inf)
        self._end.kill_family()
        self._process.wait()
        for thread in self._threads:
            thread.join(_EXIT_TIMEOUT_S)
        if any(thread.is_alive() for thread in self._threads):  # something that cannot be killed keeps a pipe
            return
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()  # type: ignore[union-attr]
        self._end.close()

    def _read(self) -> None:
        self._end.find_marker()
        stdout = open_pipe(self._process.stdout, self._end)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while raw := stdout.readline(_LINE_LIMIT):
                with contextlib.suppress(ValueError, RecursionError):
                    line = json.loads(raw.decode())
                    if isinstance(line, dict):
                        kept = {key: line[key] for key in _FILES if key in line}
                        self._post(clean_data({**line, **dict.fromkeys(kept, "")}) | kept)
            self._loop.call_soon_threadsafe(self._lines.put_nowait, None)

    def _post(self, line: Message) -> None:
        self._places.acquire()
        if not self._is_closing:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def _read_stderr(self) -> None:
        stderr = open_pipe(self._process.stderr, self._end)
        while raw := stderr.readline(_LINE_LIMIT):
            if text := clean(raw.decode("utf-8", "replace"), 500).strip():
                self.stderr.append(text)


def _send_order(process: subprocess.Popen[bytes], order: bytes) -> None:
    assert process.stdin
    with contextlib.suppress(OSError, ValueError):  # it died at once; its exit code shows that
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
    if last.get("ok") is True:
        return last
    if "error" in last:
        raise from_child({key: last["error"][key] for key in ("code", "detail", "remedy")})
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
