"""A child process as the server sees it: frames in and out, the last lines of stderr, and a certain end.

`Popen` with threads rather than asyncio's subprocesses, which some event loops on Windows lack. Spawn from a thread
that lives as long as the child: Linux sends the parent-death signal when the spawning thread ends.
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

from backend.child.wire_protocol import Channel, Header, WireError, framed
from backend.common.redaction import has_password, is_secret

PROGRAM = Path(__file__).parent
OUTSTANDING_FRAMES = 1000  # a child that floods is slowed to what the event loop takes
_STDERR_LINES = 200
_LINE_LIMIT = 2000
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ONLINE = ("fetch", "install")  # those that may have to sign in to a proxy or an index
# Through these somebody else's programs would sign in, ask or sign for the user.
_AGENTS = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "KRB5CCNAME")


class Spawn(Protocol):
    """Starts a child; tests pass one that starts a faulty program."""

    def __call__(self, python: str, arguments: list[str]) -> subprocess.Popen[bytes]: ...


def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Starts our child program in the interpreter `python`, in a session of its own so that Ctrl-C passes it by."""
    options: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    return subprocess.Popen(
        [python, "-I", str(PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(os.environ, online=arguments[0] in _ONLINE),
        cwd=PROGRAM.parents[1],
        **options,
    )


def environment(inherited: Mapping[str, str], online: bool = False) -> dict[str, str]:
    """The child's variables: the server's, without secrets, and with what keeps libraries calm.

    What drivers and libraries read differs by maker, so that no list could name all that must stay. Addresses with a
    password in them stay for a child that is `online`.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not (name.startswith("TOUCHSTONE_") or name in _AGENTS or is_secret(name))
        and (online or not has_password(value))
    }
    return kept | {
        "OMP_WAIT_POLICY": "PASSIVE",  # measured 5.5 × faster under contention
        "GGML_NO_BACKTRACE": "1",  # an abort would start a debugger
        "HF_HUB_OFFLINE": "1",
        "ORT_DISABLE_TELEMETRY": "1",  # on by default since ONNX Runtime 1.29: it reports to its maker
        "PYTHONUNBUFFERED": "1",
    }


class ChildProcess:
    """One running child. A thread each reads its frames, writes to it, and keeps its last lines of stderr."""

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._loop = loop
        self._channel = Channel(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin))
        self._outgoing: queue.SimpleQueue[Header | None] = queue.SimpleQueue()
        self._credit = threading.BoundedSemaphore(OUTSTANDING_FRAMES)
        self._frames: asyncio.Queue[Header | None] = asyncio.Queue()
        self._unsent = self._written = 0  # frames that were left to the thread, and those of them that it wrote
        if sys.platform != "win32":
            self._room = select.poll()
            self._room.register(process.stdin, select.POLLOUT)
        self._arrived: deque[Header | None] = deque()
        self._told = False  # whether the event loop will look at what arrived
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._killed = False
        self.pid = process.pid
        self.protocol_error: str | None = None
        self._errors = threading.Thread(target=self._drain, args=(process.stderr,), daemon=True)
        self._errors.start()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._write, daemon=True).start()

    def send(self, header: Header) -> None:
        """Sends a frame; a child that does not read never blocks the caller."""
        if not self._sent_at_once(header):
            self._unsent += 1
            self._outgoing.put(header)

    def _sent_at_once(self, header: Header) -> bool:
        """Whether the pipe took a small frame that nothing waits before: one thread less to wait for."""
        if self._written < self._unsent or sys.platform == "win32" or len(frame := framed(header)) > select.PIPE_BUF:
            return False
        try:
            if not self._room.poll(0):
                return False
            self._channel.write(frame)
        except (OSError, ValueError):  # its end is told by its frames
            pass
        return True

    async def receive(self) -> Header | None:
        """The next frame, or None when the child has ended (again at every later call)."""
        frame = await self._frames.get()
        if frame is None:
            self._frames.put_nowait(None)
        else:
            with contextlib.suppress(ValueError):
                self._credit.release()
        return frame

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to be gone."""
        return self._process.poll() is not None

    @property
    def killed_from_outside(self) -> bool:
        """Whether it was killed, and not by us."""
        return self._process.poll() == -signal.SIGKILL and not self._killed if sys.platform != "win32" else False

    def kill(self) -> None:
        """Ends the child and what it started, at once."""
        self._killed = True
        if self._process.returncode is None:  # else its id may be another process's by now
            self._kill_group()
        self._outgoing.put(None)
        for _ in range(OUTSTANDING_FRAMES):  # a reader that waits for credit must see the end
            with contextlib.suppress(ValueError):
                self._credit.release()

    async def ended(self) -> int:
        """Waits for the end and returns the exit code (negative: a signal's number)."""
        while await self.receive() is not None:
            pass
        return self._process.returncode

    def exit_summary(self) -> str:
        """How it ended, in words: the signal or exit code, and the last telling line it wrote."""
        code = self._process.poll()
        if self.protocol_error:
            how = f"it sent nonsense ({self.protocol_error})"
        elif code is None:
            how = "it is still alive"
        elif code < 0:
            name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
            how = f"it was ended by {name}"
        else:
            how = f"it exited with code {code}"
        line = self.last_line()
        return f"{how}; last line: {line}" if line else how

    def last_line(self) -> str | None:
        """The last line on stderr that says something: errors before chatter."""
        lines = [line for line in self._stderr if line.strip()]
        telling = [
            line for line in lines if re.search(r"\bE\b|error|fatal|abort|assert|failed|exception", line, re.IGNORECASE)
        ]
        return telling[-1] if telling else lines[-1] if lines else None

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
        """Waits for the end, and ends what the child started while its id is still its own."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):  # another thread has asked before
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)

    def _post(self, header: Header | None) -> None:
        """Hands a frame over; those that come together wake the event loop once."""
        self._arrived.append(header)
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._told = False  # first: what arrives from here on is told anew
        while self._arrived:
            self._frames.put_nowait(self._arrived.popleft())

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (header := self._outgoing.get()) is not None:
                self._channel.send(header)
                self._written += 1
        with contextlib.suppress(OSError, ValueError):  # what a dead child did not read is flushed in vain
            cast(BinaryIO, self._process.stdin).close()

    def _drain(self, stream: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(_LINE_LIMIT):
                self._stderr.append(_CONTROL.sub("", line.decode("utf-8", "replace")).strip())
