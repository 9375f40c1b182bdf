"""The runtimes: what there is, installing, proving, updating, going back, removing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from backend.common.config.strict_model import StrictModel
from backend.server.dependencies import Caller, Manager, problems
from backend.server.jobs import accepted

router = APIRouter(prefix="/api/runtimes", tags=["runtimes"])


class Nothing(StrictModel):
    """The address says it all."""


@router.get("")
async def list_runtimes(manager: Manager) -> dict[str, Any]:
    """All runtimes: what is installed, what could be and what that would cost, and the one to install first."""
    return manager.runtime_service.overview()


@router.post("/{name}/install", status_code=202, responses=problems(409, 507))
async def install_runtime(name: str, manager: Manager, caller: Caller, body: Nothing | None = None) -> JSONResponse:
    """Installs a runtime as a job; one that is whole is proved again. It counts once its proofs passed."""
    return accepted((await manager.runtime_service.submit("install", name, caller)).view())


@router.post("/{name}/verify", status_code=202, responses=problems(409))
async def verify_runtime(name: str, manager: Manager, caller: Caller, body: Nothing | None = None) -> JSONResponse:
    """Proves the devices of a runtime again, as a job."""
    return accepted((await manager.runtime_service.submit("verify", name, caller)).view())


@router.post("/{name}/update", status_code=202, responses=problems(409, 507))
async def update_runtime(name: str, manager: Manager, caller: Caller, body: Nothing | None = None) -> JSONResponse:
    """Makes the newest version beside the one in use, as a job; the old one serves until the new one is proved."""
    return accepted((await manager.runtime_service.submit("update", name, caller)).view())


@router.post("/{name}/rollback", responses=problems(409))
async def roll_back(name: str, manager: Manager, body: Nothing | None = None) -> dict[str, Any]:
    """Goes back to the version before the last update, at once; gives the Runtime."""
    return asdict(await manager.runtime_service.rollback(name))


@router.delete("/{name}", status_code=204, responses=problems(409))
async def remove_runtime(name: str, manager: Manager) -> Response:
    """Removes a runtime with all its versions, and frees their disk space."""
    await manager.runtime_service.remove(name)
    return Response(status_code=204)
