"""Moments as the API writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Now, ISO 8601 in UTC with milliseconds, such as 2026-11-28T09:30:00.125Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
