"""GET /v1/models: the models that this API can use now, in OpenAI's shape."""

from __future__ import annotations

import contextlib
from typing import Any

from fastapi import APIRouter

from backend.common.errors import UnknownModel
from backend.manager import ModelManager
from backend.models import Entry
from backend.server.dependencies import Manager
from backend.server.v1.errors import refusals

router = APIRouter(prefix="/v1", tags=["OpenAI"])
TASKS = ("text", "embeddings")


@router.get("/models", responses=refusals())
async def list_models(manager: Manager) -> dict[str, Any]:
    """The models that are ready for chat, completions or embeddings."""
    cards = [_card(manager, entry) for entry in manager.catalogue.entries().values() if entry.task in TASKS]
    return {"object": "list", "data": [card for card in cards if card["state"] == "ready"]}


@router.get("/models/{model_id:path}", responses=refusals())
async def read_model(model_id: str, manager: Manager) -> dict[str, Any]:
    """One model, whatever the state of its files."""
    entry = manager.catalogue.entries().get(model_id)
    if entry is None or entry.task not in TASKS:
        raise UnknownModel(f"There is no model {model_id[:200]!r} here.", "GET /v1/models lists what there is.")
    return _card(manager, entry)


def _card(manager: ModelManager, entry: Entry) -> dict[str, Any]:
    """`created` is when the file came here, 0 where there is none."""
    model = manager.catalogue.model(entry)
    created = 0
    with contextlib.suppress(OSError):
        created = int(entry.target.stat().st_mtime)
    return {
        "id": model.id,
        "object": "model",
        "created": created,
        "owned_by": "touchstone",
        "task": model.task,
        "state": model.state,
        "licence": model.licence,
    }
