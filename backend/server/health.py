"""GET /api/health: returns 200 while the server runs, and never waits."""

from __future__ import annotations

from fastapi import APIRouter, Request

from backend.common.types import JsonObject
from backend.server.dependencies import Manager
from backend.server.json_response import sendable

router = APIRouter(prefix="/api", tags=["health"])


@router.get("/health")
async def read_health(request: Request, manager: Manager) -> JsonObject:
    """Return the status, device and job counts, and problems with remedies (only to authenticated callers)."""
    answer = manager.health.health()
    if not request.state.known:
        del answer["problems"]
    return sendable(answer)
