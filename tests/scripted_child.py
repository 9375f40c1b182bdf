"""Scripted children without a process: the test writes what they send, so thousands of them run in seconds."""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from backend.child import handle, one_shot
from backend.child.handle import Spawn

NO_PID = 2**22 + 1  # beyond the largest process id of Linux


def frame(header: Mapping[str, Any]) -> bytes:
    """Return one frame; NaN and lone surrogates are written as Python does."""
    text = json.dumps(header).encode()
    return struct.pack("!II", len(text), 0) + text


class ScriptedProcess:
    """A fake Popen: the test writes its output, and it ends when its output ends."""

    def __init__(self, output: bytes = b"", code: int = 0, stays: bool = False) -> None:
        """`output` is there from the start. `stays`: it goes on until `finish` or a kill."""
        self.pid = NO_PID
        self.returncode: int | None = None
        self.code = code
        self.over = threading.Event()
        self._reading, self._writing = os.pipe()
        self._errors, errors = os.pipe()
        os.close(errors)
        read_end, write_end = os.pipe()
        self.stdin = os.fdopen(write_end, "wb")
        self.read_end = read_end
        self.stdout = os.fdopen(self._reading, "rb")
        self.stderr = os.fdopen(self._errors, "rb")
        self._lock = threading.Lock()
        if output:
            threading.Thread(target=self.write, args=(output, not stays), daemon=True).start()
        elif not stays:
            self.finish()

    def write(self, output: bytes, is_last: bool = False) -> None:
        """Write more output."""
        with contextlib.suppress(OSError):
            left = memoryview(output)
            while left:
                left = left[os.write(self._writing, left) :]
        if is_last:
            self.finish()

    def finish(self) -> None:
        """End the output and the process."""
        with self._lock:
            if not self.over.is_set():
                self.over.set()
                os.close(self._writing)
                os.close(self.read_end)

    def poll(self) -> int | None:
        """Return the exit code, None before the end."""
        if self.over.is_set():
            self.returncode = self.code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        if not self.over.wait(timeout):
            raise subprocess.TimeoutExpired("a script", timeout or 0)
        return cast(int, self.poll())


class ScriptedEnd:
    """A fake ProcessEnd."""

    def __init__(self, process: ScriptedProcess) -> None:
        self._process = process

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end."""
        return self._process.over.wait(min(timeout_s, 30))

    def is_reached(self) -> bool:
        """Return whether it ended."""
        return self._process.over.is_set()

    def find_marker(self) -> None:
        """Do nothing."""

    def is_near(self) -> bool:
        """Return False."""
        return False

    def kill_group(self) -> None:
        """End the script."""
        if not self._process.over.is_set():
            self._process.code = -9
        self._process.finish()

    kill_family = kill_group

    def close(self) -> None:
        """Do nothing."""

    def register(self, poll: select.poll) -> tuple[int | None, int | None]:
        """Return that only the pipe is watched."""
        return None, None


@contextlib.contextmanager
def scripts_instead_of_processes() -> Iterator[None]:
    """Let the readers of the server take scripted processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handle, "ProcessEnd", ScriptedEnd)
        patch.setattr(one_shot, "ProcessEnd", ScriptedEnd)
        patch.setattr(one_shot, "_kill", lambda process: ScriptedEnd(process).kill_group())
        yield


def playing(*outputs: bytes) -> Spawn:
    """Return a Spawn whose children send these outputs in turn, the last one again and again."""
    left = list(outputs)

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        output = left.pop(0) if len(left) > 1 else left[0]
        return cast("subprocess.Popen[bytes]", ScriptedProcess(output))

    return spawn
