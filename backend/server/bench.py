"""POST /api/bench starts a benchmark as a job; GET /api/bench returns the history of measurements."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from backend.common.types import JsonObject
from backend.manager.benchmarks.request import BenchmarkRequest
from backend.server.dependencies import Caller, Manager, problems
from backend.server.jobs import accepted_response
from backend.server.json_response import JsonResponse, sendable

router = APIRouter(prefix="/api/bench", tags=["bench"])


@router.post("", status_code=202, responses=problems(409))
async def measure(manager: Manager, caller: Caller, body: BenchmarkRequest | None = None) -> JsonResponse:
    """Run a benchmark as a job. Its `output.result` is what `bench devices --json` prints, its text is Markdown.

    Idle models of the same hardware are unloaded first. Other jobs run between two rounds.
    """
    return accepted_response((await manager.benchmarks.submit(body or BenchmarkRequest(), caller)).view())


@router.get("", responses=problems())
async def history(manager: Manager, device: str | None = None, model: str | None = None) -> JsonObject:
    """Return the measurements of this machine, oldest first. Optional filters: device and model."""
    history = manager.benchmarks.history.all(device, model)
    return sendable({"measurements": [asdict(measurement) for measurement in history]})
