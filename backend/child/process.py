"""Operating system calls for this child process: end with the parent, privileges, priority, memory."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies: reading the end of stdin needs the interpreter lock."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_privileges(also_new: bool = True) -> None:
    """Disable core dumps, which would write prompts and weights to disk.

    `also_new`: on Linux no program that this process starts gains privileges (setuid).
    """
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and also_new:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def lower_priority() -> None:
    """Set nice 5, so that the server stays responsive; on Windows the parent sets the priority class."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.nice(5)


def resident_bytes() -> int | None:
    """Return the resident memory of this process, None if the system does not report it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError):  # half the time of reading `status`
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return None
    if sys.platform == "win32":
        return _windows_working_set()[0]
    return None


def peak_bytes() -> int | None:
    """Return the highest resident memory since `reset_peak`, or since the start where it cannot be reset."""
    if sys.platform == "linux":
        return _status_bytes("VmHWM")
    if sys.platform == "win32":
        return _windows_working_set()[1]
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def reset_peak() -> None:
    """Reset the peak (Linux only, proc(5) clear_refs); elsewhere it covers the life of the process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(key: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None


def _windows_working_set() -> tuple[int | None, int | None]:
    if sys.platform != "win32":
        return None, None
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):
        """PROCESS_MEMORY_COUNTERS of psapi.h."""

        _fields_ = [
            ("cb", wintypes.DWORD),
            ("PageFaultCount", wintypes.DWORD),
            *[
                (name, ctypes.c_size_t)
                for name in ("PeakWorkingSetSize", "WorkingSetSize", "a", "b", "c", "d", "e", "f")
            ],
        ]

    counters = Counters()
    counters.cb = ctypes.sizeof(counters)
    current = ctypes.windll.kernel32.GetCurrentProcess
    current.restype = wintypes.HANDLE
    if not ctypes.windll.psapi.GetProcessMemoryInfo(
        wintypes.HANDLE(current()), ctypes.byref(counters), wintypes.DWORD(counters.cb)
    ):
        return None, None
    return int(counters.WorkingSetSize), int(counters.PeakWorkingSetSize)
