"""Why a child is gone, in words: want of memory and a lost device are told apart from a plain crash."""

from __future__ import annotations

from backend.child.handle import ChildProcess
from backend.common import error_patterns
from backend.common.errors import DeviceLost, OutOfMemory, TouchstoneError, WorkerCrashed
from backend.common.system.oom_kills import OomWatch
from backend.common.system.resources import memory_free_bytes


def classify_exit(child: ChildProcess, name: str, kills: OomWatch | None, peak_bytes: int | None) -> TouchstoneError:
    """The error for the jobs of a child that ended by itself or was killed from outside."""
    ending = f"The worker process for {name} died: {child.exit_summary()}."
    told = error_patterns.classify_error_text(child.last_line() or "")
    cause = kills.cause() if kills and child.killed_from_outside else None
    if cause or told == "out_of_memory":
        free = memory_free_bytes()
        numbers = [f"it held {peak_bytes / 1e6:.0f} MB"] if peak_bytes else []
        numbers += [f"{free / 1e6:.0f} MB are free now"] if free is not None else []
        why = f" The kernel ended it because {cause} ran out" if cause else " Its memory ran out"
        return OutOfMemory(
            f"{ending}{why}{': ' if numbers else ''}{', '.join(numbers)}.",
            "Lower text.context_tokens, close other programs, or choose a smaller model.",
            held_bytes=peak_bytes,
            free_bytes=free,
        )
    if told == "device_lost":
        return DeviceLost(ending, "Wait for the driver to recover, then refresh the devices; run `doctor`.")
    return WorkerCrashed(ending, "Run the job again; if it repeats, choose another device or engine and run `doctor`.")
