"""A limit on what a graph may take on the processor: its shapes come from a stranger's file and a caller's numbers.

Without it a shape of gigabytes is promised by the system, filled, and ended by the kernel, which may choose another
program to end. Linux alone; elsewhere the system refuses by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.common.system.resources import memory_free_bytes

_KEPT_BYTES = 200_000_000  # for the rest of the machine


@contextmanager
def within_free_memory(processor: bool, free_bytes: Callable[[], int | None] = memory_free_bytes) -> Iterator[None]:
    """Allocations beyond what is free now fail meanwhile, as MemoryError or in the library's own words."""
    free = free_bytes() if processor and sys.platform == "linux" else None
    if free is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + max(_KEPT_BYTES, free - _KEPT_BYTES)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Private memory that this process has already, as the limit counts it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)
