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

SYSTEM_CPUS = Path("/sys/devices/system/cpu")


def usable_threads() -> int:
    """Return the number of threads to start: the minimum of affinity mask, CPU quota and physical cores."""
    allowed = _affinity()
    count = len(allowed) if allowed else os.cpu_count() or 1
    if quota := _cpu_quota():
        count = min(count, math.floor(quota))  # one more would wait for the quota, and all others for it
    cores = _physical_cores(allowed)
    return max(1, min(count, cores) if cores else count)


def memory_bytes() -> int | None:
    """Return the memory of the machine, or of the cgroup if that is less; None if unknown."""
    limits = [limit for limit, _ in _cgroup_memory()]
    known = (_meminfo("MemTotal"), _windows_memory(0), _sysconf("SC_PHYS_PAGES"), *limits)
    return min((size for size in known if size), default=None)


def memory_free_bytes() -> int | None:
    """Return the memory available without swapping, None if unknown."""
    free = _meminfo("MemAvailable")
    free = _windows_memory(1) if free is None else free
    rests = [max(0, limit - used) for limit, used in _cgroup_memory() if used is not None]
    return min((size for size in (free, *rests) if size is not None), default=None)


def process_cpu_s(pid: int) -> float | None:
    """Return the processor time of a process on all cores in seconds, None if unknown or if it has exited."""
    stat = cgroups.read(cgroups.PROC / str(pid) / "stat")
    fields = stat.rpartition(")")[2].split()  # a program's name may contain spaces, and half a character at its end
    if len(fields) < 13:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _affinity() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def _physical_cores(allowed: set[int]) -> int | None:
    cores = set()
    for cpu in allowed:
        topology = SYSTEM_CPUS / f"cpu{cpu}" / "topology"
        core = cgroups.read(topology / "core_id")
        if not core:
            return None
        cores.add((cgroups.read(topology / "physical_package_id"), core))
    return len(cores) or None


def _cpu_quota() -> float | None:
    """Return the lowest quota of this process's cgroup and of those above it, in processors; None without a quota."""
    quotas = []
    for file in cgroups.files("self", "cpu.max", "cpu", "cpu.cfs_quota_us"):
        values = cgroups.read(file).split()
        if len(values) == 1:  # version 1 has the period in a separate file
            values.append(cgroups.read(file.with_name("cpu.cfs_period_us")))
        try:
            quota, period = float(values[0]), float(values[1])
        except (ValueError, IndexError):
            continue
        if quota > 0 and period > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _cgroup_memory() -> list[tuple[int, int | None]]:
    """Return limit and used bytes of each cgroup with a limit: this process's and those above it."""
    files = cgroups.files("self", "memory.max", "memory", "memory.limit_in_bytes")
    texts = [(file, cgroups.read(file)) for file in files]
    # Version 1 writes a huge number for "no limit".
    return [(int(text), _used(file)) for file, text in texts if text.isdigit() and int(text) < 1 << 60]


def _used(limit_file: Path) -> int | None:
    """Return the used memory of a cgroup without the inactive file cache, which the kernel can reclaim."""
    name = "memory.current" if limit_file.name == "memory.max" else "memory.usage_in_bytes"
    text = cgroups.read(limit_file.with_name(name))
    if not text.isdigit():
        return None
    facts = cgroups.read(limit_file.with_name("memory.stat")).splitlines()
    numbers = {pair[0]: int(pair[1]) for line in facts if len(pair := line.split()) == 2 and pair[1].isdigit()}
    return max(0, int(text) - numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))


def _meminfo(key: str) -> int | None:
    for line in cgroups.read(cgroups.PROC / "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == key and words and words[0].isdigit():
            return int(words[0]) * 1024
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
