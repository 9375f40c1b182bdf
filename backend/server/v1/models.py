"""GET /v1/models: the models that this API can use, in OpenAI's shape."""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import APIRouter

from backend.common.bounded_reads import bounded_read
from backend.common.errors import UnknownModel
from backend.common.types import JsonObject
from backend.manager import ModelManager
from backend.models import Entry
from backend.server.dependencies import Manager
from backend.server.json_response import sendable
from backend.server.v1.errors import refusals

router = APIRouter(prefix="/v1", tags=["OpenAI"])
TASKS = ("text", "embeddings")


@router.get("/models", responses=refusals())
async def list_models(manager: Manager) -> JsonObject:
    """Return the models that are ready for chat, completions or embeddings."""
    cards = await asyncio.to_thread(_cards, manager)
    return sendable({"object": "list", "data": [card for card in cards if card["state"] == "ready"]})


@router.get("/models/{model_id:path}", responses=refusals())
async def read_model(model_id: str, manager: Manager) -> JsonObject:
    """Return one model, in any state."""
    entry = (await asyncio.to_thread(manager.catalogue.entries)).get(model_id)
    if entry is None or entry.task not in TASKS:
        raise UnknownModel(f"Unknown model {model_id[:200]!r}.", "GET /v1/models lists the models.")
    return sendable(await asyncio.to_thread(_card, manager, entry))


def _cards(manager: ModelManager) -> list[JsonObject]:
    return [_card(manager, entry) for entry in manager.catalogue.entries().values() if entry.task in TASKS]


def _card(manager: ModelManager, entry: Entry) -> JsonObject:
    """Return a model as OpenAI's object. `created` is the time of its file, 0 without a file."""
    model = manager.catalogue.model(entry)
    created = 0
    with contextlib.suppress(OSError):
        created = int(bounded_read(entry.target, entry.target.stat).st_mtime)
    return {
        "id": model.id,
        "object": "model",
        "created": created,
        "owned_by": "touchstone",
        "task": model.task,
        "state": model.state,
        "licence": model.licence,
    }
