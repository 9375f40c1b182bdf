"""Translates a body in OpenAI's shape to the requests of its jobs, runs them, and returns the response."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from fastapi import Request
from fastapi.responses import Response

from backend.common.errors import ModelIncompatible, UnknownModel
from backend.common.seeds import offset_seed
from backend.common.types import JsonObject
from backend.jobs.generate_request import GenerateRequest, parse_request
from backend.manager import ModelManager
from backend.server.error_handlers import respond
from backend.server.json_response import JsonResponse
from backend.server.sse import ServerSent, Streams
from backend.server.v1.choices import Choices
from backend.server.v1.request_models import Generation, TargetKeys, TextBody
from backend.tasks.options.text import Sampling

HEADERS_S = 2.0  # a stream sends its headers after this time, so that proxies and clients see that it is alive
PING_S = 5.0  # pause between the comments of a stream that waits


class JobsResponse(Protocol):
    """The response of a route, from its jobs."""

    def full(self) -> JsonObject:
        """Return the complete response. All jobs must be done."""
        ...

    def pieces(self) -> AsyncIterator[str]:
        """Yield the response as server-sent events."""
        ...


def run_keys(body: TargetKeys) -> JsonObject:
    """Return the keys of a job's request that decide where it runs. Raises UnknownModel if the body has no model."""
    if not body.model:
        raise UnknownModel("The request has no `model`.", "GET /v1/models lists the models.")
    return {"model": body.model, "device": body.device, "fallback": body.fallback, "engine": body.engine}


def require_model_task(manager: ModelManager, body: TargetKeys, task: str) -> None:
    """Check that the model is made for a task. Raises ModelIncompatible, UnknownModel."""
    entry = manager.catalogue.resolve(run_keys(body)["model"], task=task)
    if entry.task != task:
        raise ModelIncompatible(
            f"The model {entry.id} is for {entry.task}, not for {task}.",
            f"Choose a model whose task is {task} in GET /v1/models, or add one (docs/models.md).",
        )


def sampling_options(body: TextBody) -> JsonObject:
    """Return the options that the body sets. The others keep the service's defaults, except that top_k is off."""
    options = body.model_dump(include=set(Sampling.model_fields), exclude_unset=True)
    return {"top_k": body.top_k, **options}


def build_requests(body: Generation, inputs: list[JsonObject], options: JsonObject) -> list[GenerateRequest]:
    """Return n requests for each of the `inputs` (prompt or messages).

    A seed is increased for each choice; otherwise all choices would be the same. Raises UnknownModel, Validation.
    """
    requests = []
    for each in inputs:
        for number in range(body.n):
            seed = {"seed": offset_seed(options["seed"], number)} if "seed" in options else {}
            request = {**run_keys(body), **each, "task": "text", "options": {**options, **seed}, "stream": body.stream}
            requests.append(parse_request(request))
    return requests


async def run_and_respond(
    request: Request,
    manager: ModelManager,
    streams: Streams,
    caller: str,
    body: TextBody,
    requests: list[GenerateRequest],
    make_response: Callable[[Choices], JobsResponse],
    names: Mapping[str, str] | None = None,
    key: str | None = None,
) -> Response:
    """Accept the jobs and return their output, complete or as a stream. Closing the request cancels them.

    `names`: optional, the caller's keys by the keys of the jobs' requests, for errors. `key`: optional, the
    Idempotency-Key; closing the request then cancels nothing.
    """
    if body.stream:
        streams.check()  # before jobs are accepted whose events cannot be sent
    choices = await Choices.accept(manager, requests, caller, names, key)
    if early := await (wait_for_start(choices, request) if body.stream else wait_for_end(choices, request)):
        return early
    response = make_response(choices)
    if body.stream:
        return ServerSent(streams, response.pieces(), choices.headers(), choices.leave, PING_S)
    return JsonResponse(response.full(), headers=choices.headers())


async def wait_for_start(choices: Choices, request: Request) -> Response | None:
    """Wait until the first job computes, at most `HEADERS_S`. Returns a response if the request is over, else None."""
    return _early_response(choices, request, await choices.wait_for_start(request, HEADERS_S))


async def wait_for_end(choices: Choices, request: Request) -> Response | None:
    """Wait until all jobs ended. Returns a response unless they succeeded."""
    return _early_response(choices, request, await choices.wait_for_end(request))


def _early_response(choices: Choices, request: Request, is_connected: bool) -> Response | None:
    if failure := choices.failure():
        return respond(failure, choices.headers(), path=request.url.path)
    return None if is_connected else Response(status_code=204)  # is not received any more
