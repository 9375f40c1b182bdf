"""Limit the memory that a graph may allocate on the CPU: its shapes come from an untrusted file and from the request.

Without a limit, Linux grants an allocation of many gigabytes and its out-of-memory killer ends some process once the
memory is used. Linux only; other systems refuse such an allocation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.common.system.resources import memory_free_bytes

_KEPT_BYTES = 200_000_000  # reserved for the rest of the machine


@contextmanager
def within_free_memory(processor: bool, free_bytes: Callable[[], int | None] = memory_free_bytes) -> Iterator[None]:
    """Limit allocations to the memory that is free now; beyond it they raise MemoryError or the library's exception."""
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
    """Return the private memory that this process has allocated, as the limit counts it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)
