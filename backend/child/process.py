"""What the operating system knows of this child: its end with the parent, its priority, its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h


def die_with_parent() -> None:
    """Asks Linux to kill this process when the parent dies: the end of stdin alone waits for the interpreter lock."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def give_up_rights(also_new: bool = True) -> None:
    """No core dump, which would put prompts and weights on the disk; on Linux no rights by programs that have more.

    Not `also_new` where a driver may need help: NVIDIA's library calls its `nvidia-modprobe`, a program of root's.
    """
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and also_new:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def lower_priority() -> None:
    """Nice 5, so that the server's own answers stay prompt; Windows gets its class from the parent."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.nice(5)


def resident_bytes() -> int | None:
    """Resident memory of this process now, or None where the system does not say."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError):  # in half of the time that `status` takes
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return None
    if sys.platform == "win32":
        return _windows_working_set()[0]
    return None


def peak_bytes() -> int | None:
    """Highest resident memory since `reset_peak`, or since the start where it cannot be reset."""
    if sys.platform == "linux":
        return _status_bytes("VmHWM")
    if sys.platform == "win32":
        return _windows_working_set()[1]
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def reset_peak() -> None:
    """Starts the peak anew (Linux, proc(5) clear_refs); elsewhere the peak is that of the process."""
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
