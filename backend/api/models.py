"""The models: what there is, fetching, loading, unloading."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from backend import maintenance
from backend.api.deps import Caller, Manager, problems
from backend.api.jobs import accepted
from backend.requests import Name, Strict

router = APIRouter(prefix="/api/models", tags=["models"])


class Add(Strict):
    """Where the model comes from: the id of a model of the catalogue."""

    source: Name
    id: Name | None = None
    task: Name | None = None


class Load(Strict):
    """Where to load; the defaults are those of a generation."""

    device: Name | None = None
    engine: Name | None = None


class Unload(Strict):
    """A model is unloaded from wherever it is loaded."""


@router.get("")
async def list_models(manager: Manager) -> dict[str, Any]:
    """All models with the state of their files and the options they take."""
    return {"models": [asdict(model) for model in manager.models()]}


@router.post("", status_code=202, responses=problems())
async def add_model(body: Add, manager: Manager, caller: Caller) -> JSONResponse:
    """Fetches a model of the catalogue as a job."""
    return accepted(await maintenance.fetch(manager, body.source, caller))


@router.post("/{model_id}/load", status_code=202, responses=problems(409))
async def load_model(model_id: str, manager: Manager, caller: Caller, body: Load | None = None) -> JSONResponse:
    """Loads a model as a job."""
    asked = body or Load()
    return accepted(await maintenance.load(manager, model_id, asked.device or "auto", asked.engine, caller))


@router.post("/{model_id}/unload", status_code=202, responses=problems())
async def unload_model(model_id: str, manager: Manager, caller: Caller, body: Unload | None = None) -> JSONResponse:
    """Unloads a model as a job; its receipt has the memory before and after."""
    return accepted(await maintenance.unload(manager, model_id, caller))
