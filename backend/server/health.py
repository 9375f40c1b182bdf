"""GET /api/health: up at once, never waits, 200 as long as the server serves."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from backend.server.dependencies import Manager

router = APIRouter(prefix="/api", tags=["health"])


@router.get("/health")
async def read_health(request: Request, manager: Manager) -> dict[str, Any]:
    """Status, device and job counts, and problems with their remedies (for known callers alone)."""
    answer = manager.health.health()
    if not request.state.known:
        del answer["problems"]
    return answer
