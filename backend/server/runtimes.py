"""The runtimes: list, install, verify, update, roll back, remove."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import Response

from backend.common.config.strict_model import StrictModel
from backend.common.types import JsonObject
from backend.server.dependencies import Caller, Manager, problems
from backend.server.jobs import accepted_response
from backend.server.json_response import JsonResponse, sendable

router = APIRouter(prefix="/api/runtimes", tags=["runtimes"])


class EmptyBody(StrictModel):
    """An empty object."""


@router.get("")
async def list_runtimes(manager: Manager) -> JsonObject:
    """Return all runtimes, installed or installable with size and time, and the best one to install first."""
    return sendable(manager.runtime_service.overview())


@router.post("/{name}/install", status_code=202, responses=problems(409, 507))
async def install_runtime(name: str, manager: Manager, caller: Caller, body: EmptyBody | None = None) -> JsonResponse:
    """Install a runtime as a job. It is used once its proofs passed. An installed runtime is verified instead."""
    return accepted_response((await manager.runtime_service.submit("install", name, caller)).view())


@router.post("/{name}/verify", status_code=202, responses=problems(409))
async def verify_runtime(name: str, manager: Manager, caller: Caller, body: EmptyBody | None = None) -> JsonResponse:
    """Prove the devices of a runtime again, as a job."""
    return accepted_response((await manager.runtime_service.submit("verify", name, caller)).view())


@router.post("/{name}/update", status_code=202, responses=problems(409, 507))
async def update_runtime(name: str, manager: Manager, caller: Caller, body: EmptyBody | None = None) -> JsonResponse:
    """Install the newest version as a job. The current one is used until the new one passed its proofs."""
    return accepted_response((await manager.runtime_service.submit("update", name, caller)).view())


@router.post("/{name}/rollback", responses=problems(409))
async def roll_back(name: str, manager: Manager, body: EmptyBody | None = None) -> JsonObject:
    """Switch back to the version before the last update, at once. Returns the Runtime."""
    return sendable(asdict(await manager.runtime_service.rollback(name)))


@router.delete("/{name}", status_code=204, responses=problems(409))
async def remove_runtime(name: str, manager: Manager) -> Response:
    """Remove all versions of a runtime, which frees their disk space."""
    await manager.runtime_service.remove(name)
    return Response(status_code=204)
