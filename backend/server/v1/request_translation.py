"""From a body in OpenAI's shape to the requests of its jobs, and from the jobs to the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from backend.common.errors import ModelIncompatible, UnknownModel
from backend.common.seeds import offset_seed
from backend.jobs.request import GenerateRequest, parse_request
from backend.manager import ModelManager
from backend.server.error_handlers import respond
from backend.server.sse import ServerSent, Streams
from backend.server.v1.choices import Choices
from backend.server.v1.request_models import Generation, Where
from backend.server.v1.response_shapes import Answer
from backend.tasks.options.text import Sampling

LEAST_TOP_P = 1e-6


def where_of(body: Where) -> dict[str, Any]:
    """The keys of a request that say where it runs. Raises UnknownModel where the body names no model."""
    if not body.model:
        raise UnknownModel("The request names no model.", "GET /v1/models lists what there is.")
    return {"model": body.model, "device": body.device, "fallback": body.fallback, "engine": body.engine}


def made_for(manager: ModelManager, body: Where, task: str) -> None:
    """Raises ModelIncompatible for a model that was made for something else, and UnknownModel."""
    entry = manager.catalogue.resolve(where_of(body)["model"])
    if entry.task != task:
        raise ModelIncompatible(
            f"The model {entry.id} makes {entry.task}, and was not made for {task}.",
            f"Choose a model whose task is {task} in GET /v1/models, or add one (docs/models.md).",
        )


def sampling_of(body: Generation) -> dict[str, Any]:
    """The options that the body sets. What it leaves out has the service's default, except that top_k is off."""
    asked = body.model_dump(include=set(Sampling.model_fields), exclude_unset=True)
    if asked.get("top_p") == 0:  # which OpenAI's API takes: the likeliest token alone
        asked["top_p"] = LEAST_TOP_P
    return {"top_k": body.top_k, **asked}


def requests_of(body: Generation, say: list[dict[str, Any]], options: dict[str, Any]) -> list[GenerateRequest]:
    """n requests for each of `say` (prompt or messages). With a seed each choice counts it up, or all were the same.

    Raises UnknownModel, and Validation for messages that do not fit each other.
    """
    requests = []
    for said in say:
        for number in range(body.n):
            seed = {"seed": offset_seed(options["seed"], number)} if "seed" in options else {}
            asked = {**where_of(body), **said, "task": "text", "options": {**options, **seed}, "stream": body.stream}
            requests.append(parse_request(asked))
    return requests


async def answered(
    request: Request,
    manager: ModelManager,
    streams: Streams,
    caller: str,
    body: Generation,
    requests: list[GenerateRequest],
    answer_of: Callable[[Choices], Answer],
) -> Response:
    """Accepts the jobs and answers with what they make, whole or as it comes. Leaving cancels them."""
    if body.stream:
        streams.check()  # before there are jobs that nobody could follow
    choices = await Choices.accept(manager, requests, caller)
    if refusal := await (begun(choices, request) if body.stream else ended(choices, request)):
        return refusal
    answer = answer_of(choices)
    if body.stream:
        return ServerSent(streams, answer.pieces(), choices.headers(), choices.cancel)
    return JSONResponse(answer.whole(), headers=choices.headers())


async def begun(choices: Choices, request: Request) -> Response | None:
    """Waits until the first job computes; the answer, if it is one already."""
    return _over(choices, request, await choices.begun(request))


async def ended(choices: Choices, request: Request) -> Response | None:
    """Waits until the jobs have ended; the answer, unless they are done."""
    return _over(choices, request, await choices.ended(request))


def _over(choices: Choices, request: Request, stays: bool) -> Response | None:
    if failure := choices.failure():
        return respond(failure, choices.headers(), path=request.url.path)
    return None if stays else Response(status_code=204)  # which nobody reads
