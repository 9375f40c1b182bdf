"""The inventory of hardware and system facts, queried in a child process with a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

from backend.child.handle import ChildProcess, Spawn
from backend.child.wire_protocol import Frame
from backend.common.hardware.checks import Check, System
from backend.common.types import Hardware, JsonObject

log = logging.getLogger(__name__)
LIMIT_S = 60.0  # PowerShell may need half of it right after boot


async def query_hardware(spawn: Spawn, limit_s: float = LIMIT_S) -> list[Hardware]:
    """Return all hardware that the system reports, sorted by id, the CPU first.

    After a timeout it returns the last complete list, which may be empty; failures are logged.
    """
    frames = await _survey(spawn, "hardware", limit_s)
    lists: list[list[JsonObject]] = [frame["hardware"] for frame in frames if frame["op"] == "hardware"]
    return [Hardware(**fields) for fields in lists[-1]] if lists else []


async def query_system(spawn: Spawn, limit_s: float = LIMIT_S) -> System | None:
    """Return the facts about the system for the doctor, None if the child failed or timed out."""
    frames = await _survey(spawn, "system", limit_s)
    facts: JsonObject | None = next((frame["system"] for frame in frames if frame["op"] == "system"), None)
    return System(**{**facts, "checks": [Check(**fields) for fields in facts["checks"]]}) if facts else None


async def _survey(spawn: Spawn, what: str, limit_s: float) -> list[Frame]:
    try:
        process = spawn(sys.executable, ["survey", what])
    except OSError as error:
        log.error("listing the hardware failed", extra={"detail": str(error)})
        return []
    child = ChildProcess(process, asyncio.get_running_loop())
    frames: list[Frame] = []
    try:
        async with asyncio.timeout(limit_s):
            while frame := await child.receive():
                frames.append(frame)
            if await child.ended() or child.protocol_error:
                log.error("listing the hardware failed", extra={"detail": child.exit_summary()})
    except TimeoutError:
        log.error("listing the hardware timed out", extra={"timeout_s": limit_s})
    finally:
        child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await child.ended()
    return frames
