"""The devices: their states with reasons and remedies, new probes, and the end of a quarantine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Query

from backend.common.config.strict_model import Name, StrictModel
from backend.common.types import JsonObject
from backend.server.dependencies import Manager, problems
from backend.server.json_response import sendable

router = APIRouter(prefix="/api/devices", tags=["devices"])


class Refresh(StrictModel):
    """The device to probe again. Default: all devices."""

    device: Name | None = None


class Release(StrictModel):
    """The model whose quarantine on the device is lifted. Default: all models."""

    model: Name | None = None


@router.get("", responses=problems())
async def list_devices(
    manager: Manager, wait_s: Annotated[float, Query(ge=0, le=300, allow_inf_nan=False)] = 0
) -> JsonObject:
    """Return all devices and hardware. `wait_s` is a timeout: it waits until no device is being probed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await manager.probes.wait_until_idle()
    return sendable(await manager.health.read_device_list())


@router.post("/refresh", status_code=202, responses=problems())
async def refresh(manager: Manager, body: Refresh | None = None) -> JsonObject:
    """Probe one device again, or all by default. Returns at once; the device list shows the progress."""
    manager.directory.refresh(body.device if body else None)
    return sendable(await manager.health.read_device_list())


@router.post("/{device_id}/release", status_code=202, responses=problems())
async def release(device_id: str, manager: Manager, body: Release | None = None) -> JsonObject:
    """Lift a quarantine and probe the device; its proof decides whether it becomes ready."""
    manager.directory.release(device_id, body.model if body else None)
    return sendable(await manager.health.read_device_list())
