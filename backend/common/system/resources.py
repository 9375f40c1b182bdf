"""What this process may use of the machine: processors and memory, with the limits of containers respected.

Standard library only: the server and the children of any environment ask here.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path

from backend.common.system import cgroups


def usable_threads() -> int:
    """Threads worth starting: affinity mask, then the cgroup's CPU quota, then physical cores where they are told."""
    allowed = _affinity()
    count = len(allowed) if allowed else os.cpu_count() or 1
    if quota := _cpu_quota():
        count = min(count, math.ceil(quota))
    cores = _physical_cores(allowed)
    return max(1, min(count, cores) if cores else count)


def memory_bytes() -> int | None:
    """Memory of the machine, or of the cgroup where that is less; None where the system does not say."""
    known = [
        size for size in (_meminfo("MemTotal"), _cgroup_limit(), _windows_memory(0), _sysconf("SC_PHYS_PAGES")) if size
    ]
    return min(known) if known else None


def memory_free_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    free = _meminfo("MemAvailable") or _windows_memory(1)
    limit, used = _cgroup_limit(), _cgroup_used()
    if limit is not None and used is not None:
        rest = max(0, limit - used)
        return min(free, rest) if free is not None else rest
    return free


def process_cpu_s(pid: int) -> float | None:
    """Processor time of a process on all cores; None where the system does not say, or it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a program's name may hold spaces
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _affinity() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def _physical_cores(allowed: set[int]) -> int | None:
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return None
    return len(cores) or None


def _cpu_quota() -> float | None:
    words = cgroups.read(cgroups.file("self", "cpu.max", "cpu", "cpu.cfs_quota_us")).split()
    if len(words) == 1:  # version 1 has the period in a file of its own
        words.append(cgroups.read(cgroups.file("self", "cpu.max", "cpu", "cpu.cfs_period_us")))
    try:
        quota, period = float(words[0]), float(words[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _cgroup_limit() -> int | None:
    text = cgroups.read(cgroups.file("self", "memory.max", "memory", "memory.limit_in_bytes"))
    # Version 1 writes a huge number for "no limit".
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _cgroup_used() -> int | None:
    """What is used and cannot be had back: the file cache that nobody touched of late can."""
    text = cgroups.read(cgroups.file("self", "memory.current", "memory", "memory.usage_in_bytes"))
    if not text.isdigit():
        return None
    facts = cgroups.read(cgroups.file("self", "memory.stat", "memory", "memory.stat")).splitlines()
    numbers = {words[0]: int(words[1]) for line in facts if len(words := line.split()) == 2 and words[1].isdigit()}
    return max(0, int(text) - numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))


def _meminfo(key: str) -> int | None:
    for line in cgroups.read(cgroups.PROC / "meminfo").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def _sysconf(key: str) -> int | None:
    if sys.platform != "darwin":
        return None
    return os.sysconf(key) * os.sysconf("SC_PAGE_SIZE")


def _windows_memory(position: int) -> int | None:
    if sys.platform != "win32":
        return None
    status = (ctypes.c_ulonglong * 8)()  # MEMORYSTATUSEX: two DWORDs, then total and available physical memory
    ctypes.memmove(status, (ctypes.c_ulong * 1)(ctypes.sizeof(status)), 4)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status[1 + position])
