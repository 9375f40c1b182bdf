"""Processors and memory that this process may use, within the limits of containers.

The server and child processes of all runtimes use this module.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path

from backend.common.system import cgroups


def usable_threads() -> int:
    """Return the number of threads to start: the minimum of affinity mask, CPU quota and physical cores."""
    allowed = _affinity()
    count = len(allowed) if allowed else os.cpu_count() or 1
    if quota := _cpu_quota():
        count = min(count, math.ceil(quota))
    cores = _physical_cores(allowed)
    return max(1, min(count, cores) if cores else count)


def memory_bytes() -> int | None:
    """Return the memory of the machine, or of the cgroup if that is less; None if unknown."""
    sizes = [
        size for size in (_meminfo("MemTotal"), _cgroup_limit(), _windows_memory(0), _sysconf("SC_PHYS_PAGES")) if size
    ]
    return min(sizes) if sizes else None


def memory_free_bytes() -> int | None:
    """Return the memory available without swapping, None if unknown."""
    free = _meminfo("MemAvailable") or _windows_memory(1)
    limit, used = _cgroup_limit(), _cgroup_used()
    if limit is not None and used is not None:
        rest = max(0, limit - used)
        return min(free, rest) if free is not None else rest
    return free


def process_cpu_s(pid: int) -> float | None:
    """Return the processor time of a process on all cores in seconds, None if unknown or if it has exited."""
    try:
        stat = (cgroups.PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # a program's name may contain spaces, and half a character at its end
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
    values = cgroups.read(cgroups.file("self", "cpu.max", "cpu", "cpu.cfs_quota_us")).split()
    if len(values) == 1:  # version 1 has the period in a separate file
        values.append(cgroups.read(cgroups.file("self", "cpu.max", "cpu", "cpu.cfs_period_us")))
    try:
        quota, period = float(values[0]), float(values[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _cgroup_limit() -> int | None:
    text = cgroups.read(cgroups.file("self", "memory.max", "memory", "memory.limit_in_bytes"))
    # Version 1 writes a huge number for "no limit".
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _cgroup_used() -> int | None:
    """Return the used memory without the inactive file cache, which the kernel can reclaim."""
    text = cgroups.read(cgroups.file("self", "memory.current", "memory", "memory.usage_in_bytes"))
    if not text.isdigit():
        return None
    facts = cgroups.read(cgroups.file("self", "memory.stat", "memory", "memory.stat")).splitlines()
    numbers = {pair[0]: int(pair[1]) for line in facts if len(pair := line.split()) == 2 and pair[1].isdigit()}
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
