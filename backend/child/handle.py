"""The server's handle to a child process: send and receive frames, the last lines of stderr, and a reliable kill.

It uses `Popen` with threads, since asyncio's subprocesses do not exist in some event loops of Windows. Spawn a child
from a thread that lives as long as the child: Linux sends the parent-death signal when the spawning thread ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from backend.child.wire_protocol import Channel, Frame, WireError, encode_frame
from backend.common.commands import LAUNCHER_VARIABLE
from backend.common.known_errors.table import telling_line
from backend.common.redaction import has_password, is_secret

PROGRAM = Path(__file__).parent
OUTSTANDING_FRAMES = 1000  # backpressure: a child that sends more waits for the event loop
_STDERR_LINES = 200
_LINE_LIMIT = 2000
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
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
    options: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    return subprocess.Popen(
        [python, "-I", str(PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(os.environ, online=arguments[0] in _ONLINE_PROGRAMS),
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


class ChildProcess:
    """One running child. Three threads: one reads frames, one writes frames, one keeps the last lines of stderr."""

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._loop = loop
        self._channel = Channel(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin))
        self._outgoing: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._credit = threading.BoundedSemaphore(OUTSTANDING_FRAMES)
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._queued = self._written = 0  # frames given to the writing thread, and those of them that it wrote
        if sys.platform != "win32":
            self._room = select.poll()
            self._room.register(process.stdin, select.POLLOUT)
        self._arrived: deque[Frame | None] = deque()
        self._is_wakeup_due = False  # whether the event loop will look at what arrived
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._killed = False
        self.pid = process.pid
        self.protocol_error: str | None = None
        self._errors = threading.Thread(target=self._drain, args=(process.stderr,), daemon=True)
        self._errors.start()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._write, daemon=True).start()

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
        frame = await self._frames.get()
        if frame is None:
            self._frames.put_nowait(None)
        else:
            with contextlib.suppress(ValueError):
                self._credit.release()
        return frame

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def killed_from_outside(self) -> bool:
        """Whether another program killed it, such as the kernel when memory is short."""
        return self._process.poll() == -signal.SIGKILL and not self._killed if sys.platform != "win32" else False

    def kill(self) -> None:
        """Kill the child and the processes that it started."""
        self._killed = True
        if self._process.returncode is None:  # else another process may have its id by now
            self._kill_group()
        self._outgoing.put(None)
        for _ in range(OUTSTANDING_FRAMES):  # so that a reader that waits for credit sees the end
            with contextlib.suppress(ValueError):
                self._credit.release()

    async def ended(self) -> int:
        """Wait for the end and return the exit code (negative: the number of a signal)."""
        while await self.receive() is not None:
            pass
        return self._process.returncode

    def exit_summary(self) -> str:
        """Return how it ended, as a clause: the signal or exit code, and the line of stderr that shows the cause."""
        code = self._process.poll()
        if self.protocol_error:
            how = f"it sent an invalid frame ({self.protocol_error})"
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
        try:
            while received := self._channel.receive():
                self._credit.acquire()
                self._post(received[0])
        except WireError as error:
            self.protocol_error = str(error)
            self.kill()
        except OSError:
            pass
        self._wait()
        self._errors.join(timeout=1.0)
        self._outgoing.put(None)
        for stream in (self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.close()  # type: ignore[union-attr]
        self._post(None)

    def _wait(self) -> None:
        """Wait for the end, and kill what the child started before its process id can be reused."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):  # another thread reaped it
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)

    def _post(self, header: Frame | None) -> None:
        """Pass a frame to the event loop; frames that arrive together wake it once."""
        self._arrived.append(header)
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
                self._stderr.append(_CONTROL.sub("", line.decode("utf-8", "replace")).strip())


def _exit_code(code: int) -> str:
    """Return an exit code, with its meaning if Windows defines one."""
    meaning = _WINDOWS_CODES.get(code & 0xFFFFFFFF)
    return f"{code:#x} ({meaning})" if meaning else str(code)
