"""Moments as the API writes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


def utc_now() -> str:
    """Now, ISO 8601 in UTC with milliseconds, such as 2026-11-28T09:30:00.125Z."""
    return timestamp()


def timestamp(ago: timedelta = timedelta(0)) -> str:
    """The moment that long ago, in the same form; these texts sort as the moments do."""
    then = datetime.now(timezone.utc) - ago
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")
