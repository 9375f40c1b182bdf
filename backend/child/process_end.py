"""The end of a child process and of what it started, independent of its pipes: daemons may keep them open.

What a child started is found by its process group, and on Linux by a variable in its environment, which a process keeps
that becomes a daemon (fork, setsid, fork). Not found: a process with a new environment in a new session, one of another
user, and on macOS and Windows everything that left the group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

MARKER = "TOUCHSTONE_CHILD"  # variable whose value only a child and what it starts have
_CHECK_MS = 200  # polling interval where the system does not report the end of a process
_EXITING = 0x4  # PF_EXITING of the flags in /proc/PID/stat (linux/sched.h)
_MARKER_READS = 50
_KILL_ROUNDS = 3  # a process may fork while it is being killed


class ProcessEnd:
    """Watches a process. On Windows nothing is watched: the end of the pipes counts there."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._marker: bytes | None = None
        self._pidfd: int | None = None
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # Linux before 5.3, or a container that refuses it
                self._pidfd = os.pidfd_open(process.pid)

    def find_marker(self) -> None:
        """Read the child's marker, as soon as the child has its environment: that is after the start returns."""
        for _ in range(_MARKER_READS):
            if variables := _variables(str(self._process.pid)):
                self._marker = next((each for each in variables if each.startswith(MARKER.encode() + b"=")), None)
                return
            if sys.platform != "linux" or self.is_reached():
                return
            time.sleep(0.001)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process, which is not reaped; return whether it ended."""
        give_up_at = time.monotonic() + timeout_s
        while not self.is_reached():
            left_s = min(give_up_at - time.monotonic(), 3600.0)
            if left_s <= 0:
                return False
            if self._pidfd is None:
                time.sleep(min(left_s, 0.01))
            elif sys.platform != "win32":
                poll = select.poll()
                poll.register(self._pidfd, select.POLLIN)
                poll.poll(left_s * 1000)
        return True

    def is_reached(self) -> bool:
        """Return whether the process has ended."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # another thread reaped it
            return True

    def is_near(self) -> bool:
        """Return whether the process is ending: a driver may take seconds to release a card. Linux only."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return bool(int(fields[6]) & _EXITING)
        return False

    def kill_group(self) -> None:
        """Kill the child and the processes of its group; on Windows the child alone."""
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                self._process.kill()
            return
        if self._process.returncode is None:  # else another process may have its id by now
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill_family(self) -> None:
        """Kill the group, and on Linux what left it but has the child's marker in its environment. It reads /proc."""
        self.kill_group()
        if self._marker:
            for _ in range(_KILL_ROUNDS):
                if not _kill_marked(self._marker, self._process.pid):
                    return

    def close(self) -> None:
        """Stop watching."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def register(self, poll: select.poll) -> tuple[int | None, int | None]:  # type: ignore[name-defined,unused-ignore]
        """Add the end to what `poll` waits for; return its descriptor and the timeout in ms, None where not needed."""
        if self._pidfd is None:
            return None, _CHECK_MS
        poll.register(self._pidfd, select.POLLIN)
        return self._pidfd, None


def _variables(pid: str) -> list[bytes]:
    """Return the environment of a process; empty where the system does not show it."""
    if sys.platform != "linux":
        return []
    with contextlib.suppress(OSError):
        return [each for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if each]
    return []


def _kill_marked(marker: bytes, child: int) -> bool:
    """Kill each process with the marker, apart from the child; return whether there was one."""
    found = False
    if sys.platform == "linux":
        for name in os.listdir("/proc"):  # noqa: PTH208 (half the time of Path.iterdir)
            if not name.isdigit() or int(name) == child or marker not in _variables(name):
                continue
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(int(name))
                try:
                    if marker in _variables(name):  # still the same process
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                        found = True
                finally:
                    os.close(pidfd)
    return found
