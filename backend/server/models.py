"""The models: what there is, adding, removing, loading, unloading."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import Field, StringConstraints

from backend.common.config.strict_model import Name, StrictModel
from backend.server.dependencies import Caller, Manager, problems
from backend.server.jobs import accepted

router = APIRouter(prefix="/api/models", tags=["models"])


class Add(StrictModel):
    """Where the model comes from, and what a new one is to be called."""

    source: Annotated[str, StringConstraints(min_length=1, max_length=2000)] = Field(
        description="An id of the catalogue, an https address of a .gguf file, hf:OWNER/REPO, hf:OWNER/REPO:Q4_K_M, "
        "hf:OWNER/REPO/FILE (each with @REVISION or without), the address of such a page on Hugging Face, or a path "
        "within the model folders"
    )
    id: Name | None = Field(None, description="For a new model; without it the id is made from the file's name")
    task: Name | None = Field(None, description="For a new model; without it the first task of its engine")


class Load(StrictModel):
    """Where to load; the defaults are those of a generation."""

    device: Name | None = None
    engine: Name | None = None


class Convert(StrictModel):
    """What the model is to be made into."""

    to: Name = Field(description="onnx-int8 or onnx-int4 for ONNX Runtime GenAI, openvino for OpenVINO GenAI: a folder")


class Unload(StrictModel):
    """A model is unloaded from wherever it is loaded."""


@router.get("")
async def list_models(manager: Manager) -> dict[str, Any]:
    """All models with the state of their files and the options they take."""
    return {"models": [asdict(model) for model in manager.models()]}


@router.post("", status_code=202, responses=problems())
async def add_model(body: Add, manager: Manager, caller: Caller) -> JSONResponse:
    """Fetches a model of the catalogue, or adds one for good, as a job. Asked again, it goes on where it broke off."""
    job = await manager.model_jobs.add(body.source, body.id, body.task, caller)
    return accepted(job.view())


@router.delete("/{model_id}", status_code=204, responses=problems(409))
async def remove_model(model_id: str, manager: Manager) -> Response:
    """Removes the file that was downloaded, and forgets the model if it was added. Nothing may need it."""
    manager.model_jobs.remove(model_id)
    return Response(status_code=204)


@router.post("/{model_id}/load", status_code=202, responses=problems(409))
async def load_model(model_id: str, manager: Manager, caller: Caller, body: Load | None = None) -> JSONResponse:
    """Loads a model as a job."""
    asked = body or Load()
    job = await manager.model_jobs.load(model_id, asked.device or "auto", asked.engine, caller)
    return accepted(job.view())


@router.post("/{model_id}/unload", status_code=202, responses=problems())
async def unload_model(model_id: str, manager: Manager, caller: Caller, body: Unload | None = None) -> JSONResponse:
    """Unloads a model as a job; its receipt has the memory before and after."""
    job = await manager.model_jobs.unload(model_id, caller)
    return accepted(job.view())


@router.post("/{model_id}/convert", status_code=202, responses=problems(409))
async def convert_model(model_id: str, body: Convert, manager: Manager, caller: Caller) -> JSONResponse:
    """Makes another engine's form of a GGUF model as a job; its text says how far that agrees with the source.

    The first time an environment with torch is made: 1.4 GB. Started again, it goes on where it broke off.
    """
    job = await manager.model_jobs.convert(model_id, body.to, caller)
    return accepted(job.view())
