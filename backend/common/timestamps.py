"""Timestamps in the API's format: ISO 8601, UTC, milliseconds."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


def utc_now() -> str:
    """Return the current time, such as 2026-11-28T09:30:00.125Z."""
    return timestamp()


def timestamp(ago: timedelta = timedelta(0)) -> str:
    """Return the time that long ago. The texts sort in time order."""
    then = datetime.now(timezone.utc) - ago
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")
