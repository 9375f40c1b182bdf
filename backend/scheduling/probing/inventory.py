"""The inventory of hardware and system facts, queried in a child process with a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from dataclasses import replace
from typing import Literal, TypedDict

from backend.child.handle import ChildStartError, Spawn, start_child
from backend.child.wire_protocol import Frame
from backend.common.clean_text import clean_name
from backend.common.config.frame_schema import FrameSchema
from backend.common.hardware.checks import System
from backend.common.types import Hardware

log = logging.getLogger(__name__)
LIMIT_S = 60.0  # PowerShell may need half of it right after boot
FRAMES_LIMIT = 1000


class HardwareFrame(TypedDict):
    """All hardware that was found so far."""

    op: Literal["hardware"]
    hardware: list[Hardware]


class SystemFrame(TypedDict):
    """Facts for the doctor."""

    op: Literal["system"]
    system: System


_SCHEMA = FrameSchema(HardwareFrame, SystemFrame)


async def query_hardware(spawn: Spawn, limit_s: float = LIMIT_S) -> list[Hardware]:
    """Return all hardware that the system reports, sorted by id, the CPU first.

    After a timeout it returns the last complete list, which may be empty; failures are logged.
    """
    frames = await _survey(spawn, "hardware", limit_s)
    lists: list[list[Hardware]] = [frame["hardware"] for frame in frames if frame["op"] == "hardware"]
    return [replace(item, name=clean_name(item.name)) for item in lists[-1]] if lists else []


async def query_system(spawn: Spawn, limit_s: float = LIMIT_S) -> System | None:
    """Return the facts about the system for the doctor, None if the child failed or timed out."""
    frames = await _survey(spawn, "system", limit_s)
    return next((frame["system"] for frame in frames if frame["op"] == "system"), None)


async def _survey(spawn: Spawn, what: str, limit_s: float) -> list[Frame]:
    """Return the frames of a survey, of each kind the last one."""
    try:
        child = start_child(spawn, sys.executable, ["survey", what], _SCHEMA)
    except ChildStartError as error:
        log.error("listing the hardware failed", extra={"detail": str(error)})
        return []
    frames: dict[str, Frame] = {}
    received = 0
    try:
        async with asyncio.timeout(limit_s):
            while frame := await child.receive():
                frames[frame["op"]] = frame
                received += 1
                if received > FRAMES_LIMIT:
                    child.reject(f"it is the last of more than {FRAMES_LIMIT}")
            if await child.ended() or child.protocol_error:
                log.error("listing the hardware failed", extra={"detail": child.exit_summary()})
    except TimeoutError:
        log.error("listing the hardware timed out", extra={"timeout_s": limit_s})
    finally:
        child.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await child.ended()
    return list(frames.values())
