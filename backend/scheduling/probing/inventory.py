"""The inventory of hardware and system facts, queried in a child process with a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypedDict

from backend.child.handle import ChildStartError, Spawn
from backend.child.spawner import spawn_child
from backend.child.wire_protocol import EndFrame, Frame
from backend.common.clean_text import clean_name
from backend.common.config.frame_schema import FrameSchema
from backend.common.hardware.checks import System
from backend.common.types import Hardware

log = logging.getLogger(__name__)
OnList = Callable[[list[Hardware]], None]
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


_SCHEMA = FrameSchema(HardwareFrame, SystemFrame, EndFrame)


async def query_hardware(spawn: Spawn, limit_s: float = LIMIT_S, on_list: OnList = lambda _: None) -> list[Hardware]:
    """Return all hardware that the system reports, sorted by id, the CPU first.

    `on_list` is a callback for each list, while the next, more complete one is being made. Optional. After a timeout
    the last list is returned, which may be empty; failures are logged.
    """
    items: list[Hardware] = []

    def on_frame(frame: Frame) -> None:
        nonlocal items
        if frame["op"] == "hardware":
            items = [replace(item, name=clean_name(item.name)) for item in frame["hardware"]]
            on_list(items)

    await _survey(spawn, "hardware", limit_s, on_frame)
    return items


async def query_system(spawn: Spawn, limit_s: float = LIMIT_S) -> System | None:
    """Return the facts about the system for the doctor, None if the child failed or timed out."""
    found: list[System] = []

    def on_frame(frame: Frame) -> None:
        if frame["op"] == "system":
            found[:] = [frame["system"]]

    await _survey(spawn, "system", limit_s, on_frame)
    return found[0] if found else None


async def _survey(spawn: Spawn, what: str, limit_s: float, on_frame: Callable[[Frame], None]) -> None:
    """Pass the frames of a survey to the callback. A child that cannot end after its last frame is left behind."""
    try:
        child = await spawn_child(spawn, sys.executable, ["survey", what], _SCHEMA)
    except ChildStartError as error:
        log.error("listing the hardware failed", extra={"detail": str(error)})
        return
    received = 0
    try:
        async with asyncio.timeout(limit_s):
            while frame := await child.receive():
                if frame["op"] == "end":
                    return
                on_frame(frame)
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
