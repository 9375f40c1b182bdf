"""The machine's hardware and facts as the server gets them: from a child, within a limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Any

from backend.child.handle import ChildProcess, Spawn
from backend.child.wire_protocol import Header
from backend.common.hardware.checks import Check, System
from backend.common.types import Hardware

log = logging.getLogger(__name__)
LIMIT_S = 60.0  # PowerShell alone may take half of it on a machine that starts


async def query_hardware(spawn: Spawn, limit_s: float = LIMIT_S) -> list[Hardware]:
    """All hardware that the system reports, sorted by id, the processor first.

    What a child could tell within the limit; empty if it could tell nothing, which is logged.
    """
    frames = await _survey(spawn, "hardware", limit_s)
    lists: list[list[dict[str, Any]]] = [frame["hardware"] for frame in frames if frame["op"] == "hardware"]
    return [Hardware(**fields) for fields in lists[-1]] if lists else []


async def query_system(spawn: Spawn, limit_s: float = LIMIT_S) -> System | None:
    """The facts about the system for the doctor, or None if a child could not tell them within the limit."""
    frames = await _survey(spawn, "system", limit_s)
    told: dict[str, Any] | None = next((frame["system"] for frame in frames if frame["op"] == "system"), None)
    return System(**{**told, "checks": [Check(**fields) for fields in told["checks"]]}) if told else None


async def _survey(spawn: Spawn, what: str, limit_s: float) -> list[Header]:
    try:
        process = spawn(sys.executable, ["survey", what])
    except OSError as error:
        log.error("the hardware cannot be listed", extra={"detail": str(error)})
        return []
    child = ChildProcess(process, asyncio.get_running_loop())
    frames: list[Header] = []
    try:
        async with asyncio.timeout(limit_s):
            while frame := await child.receive():
                frames.append(frame)
            if await child.ended() or child.protocol_error:
                log.error("the hardware cannot be listed", extra={"detail": child.exit_summary()})
    except TimeoutError:
        log.error("the hardware was not listed in time", extra={"limit_s": limit_s})
    finally:
        child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await child.ended()
    return frames
