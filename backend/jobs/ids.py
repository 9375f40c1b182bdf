"""The ids of jobs: opaque, and sorted as the jobs were accepted, whatever is done to the clock."""

from __future__ import annotations

import secrets
import time

_last_stamp = 0


def new_job_id() -> str:
    """An opaque id that sorts by creation: milliseconds, never going back within a process, and 40 random bits."""
    global _last_stamp
    _last_stamp = max(_last_stamp + 1, time.time_ns() // 1_000_000)
    return f"{_last_stamp:011x}{secrets.token_hex(5)}"


def seed_from(newest: str | None) -> None:
    """Lets new ids sort after that one, though the clock was set back since."""
    global _last_stamp
    _last_stamp = max(_last_stamp, int(newest[:11], 16) if newest else 0)
