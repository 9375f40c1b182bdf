"""POST /api/bench: measures models on devices as a job; GET tells what was measured before."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from backend.manager.benchmarks.request import BenchmarkRequest
from backend.server.dependencies import Caller, Manager, problems
from backend.server.jobs import accepted

router = APIRouter(prefix="/api/bench", tags=["bench"])


@router.post("", status_code=202, responses=problems(409))
async def measure(manager: Manager, caller: Caller, body: BenchmarkRequest | None = None) -> JSONResponse:
    """Measures as a job; its `output.result` is what `bench devices --json` prints, its text the same in words.

    Idle models of the hardware are unloaded for it. Jobs that come meanwhile run between two rounds.
    """
    return accepted((await manager.benchmarks.submit(body or BenchmarkRequest(), caller)).view())


@router.get("", responses=problems())
async def history(manager: Manager, device: str | None = None, model: str | None = None) -> dict[str, Any]:
    """What was measured on this machine, oldest first."""
    return {"measurements": [asdict(one) for one in manager.benchmarks.history.all(device, model)]}
