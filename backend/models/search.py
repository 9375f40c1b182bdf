"""Search Hugging Face in a child process: the server itself makes no request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict

from backend.child import handle
from backend.child.download.hub_search import MOST_RESULTS, TASKS, SearchOrder
from backend.child.download.results import HubSearch
from backend.child.one_shot import run_one_shot
from backend.common.errors import Validation
from backend.common.types import JsonObject, Progress
from backend.models.download import hub_variables
from backend.models.entries import SERVED_BY

DEFAULT_LIMIT = 10
_LONGEST_QUERY = 200
_STALL_S = 8.0


async def search(
    query: str,
    task: str | None = None,
    limit: int = DEFAULT_LIMIT,
    spawn: handle.Spawn = handle.spawn,
    environ: Mapping[str, str] = os.environ,
) -> list[JsonObject]:
    """Return the repositories with models for a task, the most downloaded first, each with its files.

    Default task: text. Raises Validation, SearchUnavailable with the reason, WorkerCrashed.
    """
    words, served = " ".join(query.split()), SERVED_BY.get(task or "text", task or "text")
    if not words or len(words) > _LONGEST_QUERY:
        raise Validation(f"q: 1 to {_LONGEST_QUERY} characters are needed.", "Name a model or a publisher.")
    if served not in TASKS:
        raise Validation(f"task: models for {task} cannot be searched.", f"Tasks: {', '.join(TASKS)}.")
    if not 1 <= limit <= MOST_RESULTS:
        raise Validation(f"limit: {limit} is not between 1 and {MOST_RESULTS}.", "Leave it out for 10 results.")
    order = SearchOrder(words, served, limit, hub_variables(environ), _STALL_S)
    sent = json.dumps(asdict(order)).encode() + b"\n"
    found = await run_one_shot(spawn, ["search"], sent, _ignore, result=HubSearch)
    results: list[JsonObject] = found["results"]
    return results


async def _ignore(progress: Progress) -> None:
    """A search has no progress to show: it takes seconds."""
