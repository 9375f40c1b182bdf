"""GET /metrics: metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response

from backend.manager.metrics import MEDIA_TYPE
from backend.server.dependencies import Manager

router = APIRouter(tags=["metrics"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def read_metrics(manager: Manager) -> Response:
    """Return counters of ended jobs and the state of devices, queues and workers, in the Prometheus text format."""
    return Response(manager.metrics.exposition(), media_type=MEDIA_TYPE)
