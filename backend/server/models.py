"""The models: list, add, remove, load, unload, convert."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BeforeValidator, Field, StringConstraints

from backend.child.download.hub_search import MOST_RESULTS
from backend.common.config.strict_model import Name, StrictModel
from backend.models.search import DEFAULT_LIMIT
from backend.server.dependencies import Caller, Manager, problems
from backend.server.jobs import accepted_response
from backend.server.json_response import JsonResponse
from backend.server.model_list import model_list_response
from backend.tasks.options.text import LayerCount, layer_count

router = APIRouter(prefix="/api/models", tags=["models"])


class Add(StrictModel):
    """The source of a model, and optional id and task of a new one."""

    source: Annotated[str, StringConstraints(min_length=1, max_length=2000)] = Field(
        description="An id of the catalogue, an https address of a .gguf file, hf:OWNER/REPO, hf:OWNER/REPO:Q4_K_M, "
        "hf:OWNER/REPO/FILE (each with an optional @REVISION), the address of such a page on Hugging Face, a source of "
        "GET /api/models/importable (ollama:NAME, lmstudio:NAME …), or a path within the model folders"
    )
    id: Name | None = Field(None, description="Of a new model. Default: derived from the file name")
    task: Name | None = Field(None, description="Of a new model. Default: the first task of its engine")


class Load(StrictModel):
    """Optional device, engine and layers on the card. The defaults are those of a generation."""

    device: Name | None = None
    engine: Name | None = None
    gpu_layers: Annotated[LayerCount | None, BeforeValidator(layer_count)] = Field(
        None, description="Layers of a GGUF model on the card, or auto: as many as fit. Default: text.gpu_layers"
    )


class Convert(StrictModel):
    """The form to convert to."""

    to: Name = Field(description="onnx-int8 or onnx-int4 for ONNX Runtime GenAI, openvino for OpenVINO GenAI")


class Unload(StrictModel):
    """An empty object: the model is unloaded from all devices."""


@router.get("")
async def list_models(manager: Manager) -> Response:
    """Return all models with the state of their files and the schema of their options.

    `recommended` is the text model for the memory of this machine; null if its memory is too small or not known.
    """
    models = await manager.read_models()
    return model_list_response(models, recommended=manager.model_advisor.recommended(models))


@router.get("/search", responses=problems(502))
async def search_models(
    manager: Manager,
    q: Annotated[str, Query(min_length=1, max_length=200, description="Words in the names of repositories")],
    task: Annotated[Name | None, Query(description="text (default), lyrics, embeddings or onnx")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_RESULTS)] = DEFAULT_LIMIT,
) -> JsonResponse:
    """Return models on Hugging Face, the most downloaded first. Add one of their files by its `source`.

    A child process makes the requests, with the token of HF_TOKEN. Offline: 503 `search_unavailable`.
    """
    return JsonResponse({"results": await manager.model_advisor.search(q, task, limit)})


@router.get("/importable")
async def list_importable_models(manager: Manager) -> JsonResponse:
    """Return the models of Ollama, LM Studio, Hugging Face's cache and llama.cpp on this machine.

    `POST /api/models {"source": …}` adds one by its `source`. It is used in place, never copied or changed.
    """
    return JsonResponse(asdict(await asyncio.to_thread(manager.catalogue.importable)))


@router.post("", status_code=202, responses=problems())
async def add_model(body: Add, manager: Manager, caller: Caller) -> JsonResponse:
    """Download a model of the catalogue, or register a new one, as a job. A repeated request resumes the download."""
    job = await manager.model_jobs.add(body.source, body.id, body.task, caller)
    return accepted_response(job.view())


@router.delete("/{model_id}", status_code=204, responses=problems(409))
async def remove_model(model_id: str, manager: Manager) -> Response:
    """Delete the downloaded files, and unregister a model that was added. Fails while the model is in use."""
    manager.model_jobs.remove(model_id)
    return Response(status_code=204)


@router.post("/{model_id}/load", status_code=202, responses=problems(409))
async def load_model(model_id: str, manager: Manager, caller: Caller, body: Load | None = None) -> JsonResponse:
    """Load a model as a job."""
    asked = body or Load(gpu_layers=None)
    job = await manager.model_jobs.load(model_id, asked.device or "auto", asked.engine, caller, asked.gpu_layers)
    return accepted_response(job.view())


@router.post("/{model_id}/unload", status_code=202, responses=problems())
async def unload_model(model_id: str, manager: Manager, caller: Caller, body: Unload | None = None) -> JsonResponse:
    """Unload a model as a job. Its receipt has the memory before and after."""
    job = await manager.model_jobs.unload(model_id, caller)
    return accepted_response(job.view())


@router.post("/{model_id}/convert", status_code=202, responses=problems(409))
async def convert_model(model_id: str, body: Convert, manager: Manager, caller: Caller) -> JsonResponse:
    """Convert a GGUF model to another engine's form as a job. Its text reports how well the form matches the source.

    The first conversion installs an environment with torch (1.4 GB). A repeated request resumes the conversion.
    """
    job = await manager.model_jobs.convert(model_id, body.to, caller)
    return accepted_response(job.view())
