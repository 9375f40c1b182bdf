"""The server's handle to a child process: send and receive frames, the last lines of stderr, and a reliable kill.

This is the border: a child may send anything at any time, or keep its pipes open and continue. Each frame is checked
and its texts are cleaned here. Unread output of a child is limited. Its end is detected even if another process holds
its pipes.

It uses `Popen` with threads, since asyncio's subprocesses do not exist in some event loops of Windows. Spawn a child
from a thread that lives as long as the child: Linux sends the parent-death signal when the spawning thread ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import queue
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from backend.child.library_paths import is_own, remove_foreign
from backend.child.process_end import MARKER, ProcessEnd
from backend.child.wire_protocol import Channel, Frame, WireError, decode_header, encode_frame
from backend.common.clean_text import clean, clean_data
from backend.common.commands import LAUNCHER_VARIABLE
from backend.common.known_errors.table import telling_line
from backend.common.redaction import has_password, is_secret
from backend.common.system.executable import program_fault

PROGRAM = Path(__file__).parent
OUTSTANDING_FRAMES = 1000  # backpressure: a child that sends more waits for the event loop
_FRAME_BYTES = 8192  # a smaller frame counts as this much, a larger one as several
_PIPE_BYTES = 1 << 20  # the most that a pipe may hold (Linux: fs.pipe-max-size)
_EXIT_S = 5.0  # for a child that closed its output
_TOKEN = b'{"op":"token",'
_EXACT = ("token", "artifact", "done", "loaded")  # with generated text or names of files: they keep every character
# What may need cleaning, or is a number that a field of any type must not have.
_ODD = re.compile(rb"[\\\x7f-\xff]|NaN|Infinity|[:\[,]\s*-?\d(?:[\d.]*[eE]\+?\d{3}|\d{38})")
_STDERR_LINES = 200
_LINE_LIMIT = 2000
_ONLINE_PROGRAMS = ("download", "install")  # they may have to sign in to a proxy or an index
# Agents that sign in or sign for the user: a library must not reach them.
_AGENTS = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "KRB5CCNAME")


# Exit codes of Windows (ntstatus.h) for processes that the system ended.
_WINDOWS_CODES = {
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction",
    0xC0000135: "a DLL was not found",
    0xC0000139: "a procedure was not found in a DLL",
    0xC0000142: "a DLL failed to start",
    0xC000007B: "a DLL is for another kind of processor",
    0xC0000374: "heap corruption",
    0xC0000409: "the program aborted",
}


class Spawn(Protocol):
    """A function that starts a child; tests pass one that starts a faulty program."""

    def __call__(self, python: str, arguments: list[str]) -> subprocess.Popen[bytes]: ...


def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start a child program in the interpreter `python`, in a new session, so that Ctrl-C does not reach it."""
    variables = environment(os.environ, online=arguments[0] in _ONLINE_PROGRAMS)
    if is_own(python):
        variables = remove_foreign(variables)
    options: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    return subprocess.Popen(
        [python, "-I", str(PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables | {MARKER: secrets.token_hex(8)},
        cwd=PROGRAM.parents[1],
        **options,
    )


def environment(inherited: Mapping[str, str], online: bool = False) -> dict[str, str]:
    """Return the child's environment variables: the server's without secrets, and settings of libraries.

    Secrets are removed by name, since no list could name all variables that drivers and libraries read. URLs with a
    password are kept if the child is `online`.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if name == LAUNCHER_VARIABLE
        or not (name.startswith("TOUCHSTONE_") or name in _AGENTS or is_secret(name))
        and (online or not has_password(value))
    }
    return kept | {
        "OMP_WAIT_POLICY": "PASSIVE",  # measured: 5.5 times faster under contention
        "GGML_NO_BACKTRACE": "1",  # else an abort starts a debugger
        "HF_HUB_OFFLINE": "1",
        "ORT_DISABLE_TELEMETRY": "1",  # on by default since ONNX Runtime 1.29
        "PYTHONUNBUFFERED": "1",
    }


class ChildStartError(Exception):
    """A child process cannot be started. The text is the reason, as a clause."""


class FrameSchema(Protocol):
    """The frames that a program sends: see `FrameSchema` in `common/config/frame_schema.py`."""

    @property
    def ops(self) -> frozenset[str]:
        """The kinds of frames."""

    @property
    def parse(self) -> Callable[[bytes], Frame]:
        """Return a frame from JSON. Raises ValueError."""

    def explain(self, error: ValueError) -> str:
        """Return why a frame is invalid, as a clause."""


def start_child(
    spawn: Spawn,
    python: str,
    arguments: list[str],
    schema: FrameSchema | None,
    loop: asyncio.AbstractEventLoop,
) -> ChildProcess:
    """Start a program in the interpreter `python`. Raises ChildStartError, whatever prevents the start."""
    name = f"its interpreter {clean(python)} cannot be started"
    try:
        process = spawn(python, arguments)
    except OSError as error:
        fault = program_fault(python)
        why = f": it {fault}" if fault else ""
        raise ChildStartError(f"{name}{why} ({clean(error.strerror or str(error))})") from error
    except Exception as error:  # ValueError: a NUL in the path; MemoryError; RuntimeError: no thread
        raise ChildStartError(f"{name} ({clean(f'{type(error).__name__}: {error}')})") from error
    return ChildProcess(process, loop, schema)


def open_pipe(pipe: Any, end: ProcessEnd) -> BinaryIO:
    """Return a reader of a child's pipe that ends with the child, on Windows with the pipe."""
    if sys.platform == "win32":
        return cast(BinaryIO, pipe)
    return cast(BinaryIO, io.BufferedReader(_ChildPipe(pipe.fileno(), end), 65536))


class ChildProcess:
    """One running child. Three threads: one reads frames, one writes frames, one keeps the last lines of stderr."""

    def __init__(
        self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, schema: FrameSchema | None = None
    ) -> None:
        """`schema` checks the frames; without one they are only cleaned. Optional. Raises ChildStartError."""
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._loop = loop
        self._end = ProcessEnd(process)
        self._schema = schema
        self._channel = Channel(open_pipe(process.stdout, self._end), cast(BinaryIO, process.stdin))
        self._outgoing: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._credit = _Credit(OUTSTANDING_FRAMES * _FRAME_BYTES)
        self._frames: asyncio.Queue[tuple[Frame, int] | None] = asyncio.Queue()
        self._queued = self._written = 0  # frames given to the writing thread, and those of them that it wrote
        if sys.platform != "win32":
            self._room = select.poll()
            self._room.register(process.stdin, select.POLLOUT)
        self._arrived: deque[tuple[Frame, int] | None] = deque()
        self._is_wakeup_due = False  # whether the event loop will look at what arrived
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._killed = self._rejected = False
        self.pid = process.pid
        self.protocol_error: str | None = None  # what it did against the protocol, as a clause
        self._errors = threading.Thread(target=self._drain, args=(open_pipe(process.stderr, self._end),), daemon=True)
        try:
            self._errors.start()
            threading.Thread(target=self._write, daemon=True).start()
            threading.Thread(target=self._read, daemon=True).start()
        except (RuntimeError, MemoryError) as error:  # "can't start new thread"
            self._abandon()
            raise ChildStartError(f"the server has no thread for it ({error})") from error

    def _abandon(self) -> None:
        """End a child that cannot be served."""
        self._end.kill_family()
        self._outgoing.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.close()  # type: ignore[union-attr]

    def send(self, header: Mapping[str, object]) -> None:
        """Send a frame. A child that does not read never blocks the caller."""
        if not self._send_directly(header):
            self._queued += 1
            self._outgoing.put(header)

    def _send_directly(self, header: Mapping[str, object]) -> bool:
        """Write a small frame if no frame is queued and the pipe has room; return whether it was written.

        This saves a thread switch.
        """
        if (
            self._written < self._queued
            or sys.platform == "win32"
            or len(frame := encode_frame(header)) > select.PIPE_BUF
        ):
            return False
        try:
            if not self._room.poll(0):
                return False
            self._channel.write(frame)
        except (OSError, ValueError):  # the end of its frames reports the death
            pass
        return True

    async def receive(self) -> Frame | None:
        """Return the next frame, or None when the child has ended (also at every later call)."""
        received = await self._frames.get()
        if received is None:
            self._frames.put_nowait(None)
            return None
        frame, cost = received
        self._credit.give_back(cost)
        return frame

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def killed_from_outside(self) -> bool:
        """Whether another program killed it, such as the kernel when memory is short."""
        return self._process.poll() == -signal.SIGKILL and not self._killed if sys.platform != "win32" else False

    def reject(self, why: str) -> None:
        """Kill the child because of a frame: `why` it is invalid, as a clause."""
        self._rejected = True
        self.protocol_error = self.protocol_error or f"it sent an invalid frame ({why})"
        self.kill()

    @property
    def is_rejected(self) -> bool:
        """Whether it was killed because of a frame that it sent."""
        return self._rejected

    def kill(self) -> None:
        """Kill the child and the processes that it started."""
        self._killed = True
        self._end.kill_group()
        self._outgoing.put(None)
        self._credit.remove_limit()  # so that a reader that waits for credit sees the end

    async def ended(self) -> int:
        """Wait for the end and return the exit code (negative: the number of a signal)."""
        while await self.receive() is not None:
            pass
        return self._process.returncode

    def exit_summary(self) -> str:
        """Return how it ended, as a clause: the signal or exit code, and the line of stderr that shows the cause."""
        code = self._process.poll()
        if self.protocol_error:
            how = self.protocol_error
        elif code is None:
            how = "it is still running"
        elif code < 0:
            name = next((member.name for member in signal.Signals if member == -code), f"signal {-code}")
            how = f"it was killed by {name}"
        else:
            how = f"it exited with code {_exit_code(code)}"
        line = self.last_line()
        return f"{how}; last line: {line}" if line else how

    def last_line(self) -> str | None:
        """Return the line of stderr that shows the cause.

        It is the first one in the table of known errors, else the last one that looks like an error, else the last one.
        """
        lines = [line for line in self._stderr if line.strip()]
        if known := telling_line(lines):
            return known
        errors = [
            line for line in lines if re.search(r"\bE\b|error|fatal|abort|assert|failed|exception", line, re.IGNORECASE)
        ]
        return errors[-1] if errors else lines[-1] if lines else None

    def _read(self) -> None:
        self._end.find_marker()
        try:
            while received := self._channel.receive_bytes():
                text = received[0]
                cost = max(len(text), _FRAME_BYTES)
                self._credit.take(cost)
                self._post((self._decode(text), cost))
        except (WireError, MemoryError) as error:
            self.reject(str(error) or "it is too large")
        except OSError:
            pass
        self._wait()
        self._errors.join(timeout=1.0)
        self._outgoing.put(None)
        for stream in (self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.close()  # type: ignore[union-attr]
        self._end.close()
        self._post(None)

    def _decode(self, text: bytes) -> Frame:
        """Return a frame with its types checked and its texts cleaned; of an unknown one only `op` and `job`.

        Raises WireError.
        """
        parse = self._schema.parse if self._schema else decode_header
        is_token = text.startswith(_TOKEN)
        try:
            if is_token or _ODD.search(text) is None:
                try:
                    return parse(text)
                except ValueError:
                    if not is_token:
                        raise
            header = decode_header(text)
            return parse(json.dumps(clean_data(header, is_exact=header["op"] in _EXACT)).encode())
        except RecursionError as error:
            raise WireError("it is nested too deeply") from error
        except ValueError as error:
            if self._schema and (unknown := _unknown_frame(text, self._schema.ops)):
                return unknown
            raise WireError(clean(self._explain(text, error), 300)) from error

    def _explain(self, text: bytes, error: ValueError) -> str:
        """Return why a frame is invalid: by the schema, which names the key, if it was refused before that."""
        if self._schema is None:
            return str(error)
        try:
            self._schema.parse(text)
        except ValueError as refusal:
            return self._schema.explain(refusal)
        return self._schema.explain(error)

    def _wait(self) -> None:
        """Wait for the end, and kill what the child started before its process id can be reused.

        A child that closed its output and goes on is killed: nothing could tell any more what it does.
        """
        if sys.platform != "win32" and not self._end.wait(_EXIT_S):
            if not self._end.is_near():
                self.protocol_error = self.protocol_error or "it closed its output and did not exit"
                self._killed = True
            self._end.kill_family()
        if sys.platform != "win32":
            self._end.wait(math.inf)
            self._end.kill_family()
        self._process.wait()

    def _post(self, received: tuple[Frame, int] | None) -> None:
        """Pass a frame to the event loop; frames that arrive together wake it once."""
        self._arrived.append(received)
        if not self._is_wakeup_due:
            self._is_wakeup_due = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._is_wakeup_due = False  # first, so that a frame that arrives now wakes the loop again
        while self._arrived:
            self._frames.put_nowait(self._arrived.popleft())

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (header := self._outgoing.get()) is not None:
                self._channel.send(header)
                self._written += 1
        with contextlib.suppress(OSError, ValueError):  # a dead child reads no more
            cast(BinaryIO, self._process.stdin).close()

    def _drain(self, stream: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(_LINE_LIMIT):
                self._stderr.append(clean(line.decode("utf-8", "replace")).strip())


def _exit_code(code: int) -> str:
    """Return an exit code, with its meaning if Windows defines one."""
    meaning = _WINDOWS_CODES.get(code & 0xFFFFFFFF)
    return f"{code:#x} ({meaning})" if meaning else str(code)


def _unknown_frame(text: bytes, known: frozenset[str]) -> Frame | None:
    """Return `op` and `job` of a frame of a kind that this version does not know; None if it knows the kind."""
    with contextlib.suppress(WireError):
        header = decode_header(text)
        if header["op"] not in known:
            job = header.get("job")
            frame = {"op": header["op"] if header["op"].isascii() else "unknown"}
            return frame | {"job": job} if isinstance(job, str) and job.isascii() else frame
    return None


class _ChildPipe(io.RawIOBase):
    """The read end of a child's pipe. It ends with the child too: a daemon may keep the pipe open for ever."""

    def __init__(self, descriptor: int, end: ProcessEnd) -> None:
        self._descriptor = descriptor
        self._end = end
        self._left_bytes: int | None = None  # of what the pipe holds, once the child has ended
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._end_descriptor, self._timeout_ms = end.register(self._poll)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer; return 0 at the end of the pipe or of the child."""
        while True:
            events = dict(self._poll.poll(self._timeout_ms if self._left_bytes is None else 0))
            if self._left_bytes is None and (self._end_descriptor in events or not events) and self._end.is_reached():
                self._end.kill_family()
                self._left_bytes = _PIPE_BYTES
            if self._descriptor in events:
                return self._read_some(buffer)
            if self._left_bytes is not None:
                return 0

    def _read_some(self, buffer: Any) -> int:
        count = os.readv(self._descriptor, [buffer if self._left_bytes is None else buffer[: self._left_bytes]])
        if self._left_bytes is not None:
            self._left_bytes -= count
        return count


class _Credit:
    """A limit on the bytes that a child has sent and the server has not read. One frame is always allowed."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes: int | None = limit_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()

    def take(self, cost: int) -> None:
        """Wait until the bytes of a frame fit."""
        with self._changed:
            while self._limit_bytes is not None and self._used_bytes and self._used_bytes + cost > self._limit_bytes:
                self._changed.wait()
            self._used_bytes += cost

    def give_back(self, cost: int) -> None:
        """Return the bytes of a frame that was taken."""
        with self._changed:
            self._used_bytes -= cost
            self._changed.notify()

    def remove_limit(self) -> None:
        """Remove the limit, so that no reader waits."""
        with self._changed:
            self._limit_bytes = None
            self._changed.notify()
