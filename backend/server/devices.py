"""The devices: what works, what does not and why, and how to look again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Query

from backend.common.config.strict_model import Name, StrictModel
from backend.server.dependencies import Manager, problems

router = APIRouter(prefix="/api/devices", tags=["devices"])


class Refresh(StrictModel):
    """Which device to probe again; without one, all."""

    device: Name | None = None


class Release(StrictModel):
    """Which model's quarantine on the device to lift; without one, those of all models."""

    model: Name | None = None


@router.get("", responses=problems())
async def list_devices(
    manager: Manager, wait_s: Annotated[float, Query(ge=0, le=300, allow_inf_nan=False)] = 0
) -> dict[str, Any]:
    """All devices and hardware. `flush_interval_s` waits that long at most until nothing is being probed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await manager.probes.wait_until_idle()
    return manager.health.device_list()


@router.post("/refresh", status_code=202, responses=problems())
async def refresh(manager: Manager, body: Refresh | None = None) -> dict[str, Any]:
    """Probes one device, or all, again."""
    manager.directory.refresh(body.device if body else None)
    return manager.health.device_list()


@router.post("/{device_id}/release", status_code=202, responses=problems())
async def release(device_id: str, manager: Manager, body: Release | None = None) -> dict[str, Any]:
    """Lets a device be tried again: its proof decides."""
    manager.directory.release(device_id, body.model if body else None)
    return manager.health.device_list()
