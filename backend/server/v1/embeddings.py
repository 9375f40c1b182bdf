"""POST /v1/embeddings: a vector for each text, by an embedding model."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common.types import JsonObject
from backend.engines._onnx.npy import read_rows
from backend.jobs.generate_request import GenerateRequest
from backend.jobs.live_job import LiveJob
from backend.manager import ModelManager
from backend.server.dependencies import Caller, Manager
from backend.server.json_response import JsonResponse
from backend.server.v1.choices import Choices
from backend.server.v1.errors import refusals
from backend.server.v1.request_models import EmbeddingsBody
from backend.server.v1.request_translation import require_model_task, run_keys, wait_for_end

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/embeddings", response_class=Response, responses=refusals(409, 429, 502))
async def embed(body: EmbeddingsBody, request: Request, manager: Manager, caller: Caller) -> Response:
    """Return a vector for each text, in OpenAI's shape. It is one job; closing the request cancels it."""
    require_model_task(manager, body, "embeddings")
    asked = GenerateRequest.model_validate({**run_keys(body), "task": "embeddings", "texts": body.input})
    choices = await Choices.accept(manager, [asked], caller, {"texts": "input"})
    if early_response := await wait_for_end(choices, request):
        return early_response
    job = choices.jobs[0]
    rows = await asyncio.to_thread(_read_vectors, manager, job)
    return JsonResponse(_response(job, rows, body.encoding_format), headers=choices.headers())


def _read_vectors(manager: ModelManager, job: LiveJob) -> list[bytes]:
    return read_rows(manager.artifacts.folder(job.id) / job.artifacts[0].name, len(job.request.texts or ()))


def _response(job: LiveJob, rows: list[bytes], form: Literal["float", "base64"]) -> JsonObject:
    receipt = job.view()["receipt"]
    tokens = receipt["counts"]["prompt_tokens"]
    return {
        "object": "list",
        "model": job.model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _encode_vector(row, form)}
            for index, row in enumerate(rows)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "receipt": receipt,
    }


def _encode_vector(row: bytes, form: Literal["float", "base64"]) -> list[float] | str:
    return base64.b64encode(row).decode() if form == "base64" else list(struct.unpack(f"<{len(row) // 4}f", row))
