"""POST /api/generate: waits for the result, returns the job at once, or streams its events."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from backend.common.errors import Interrupted, TouchstoneError, Validation
from backend.common.types import Job, JsonObject, Problem
from backend.jobs.executor import cancelled
from backend.jobs.generate_request import GenerateRequest
from backend.manager import ModelManager
from backend.server.dependencies import Caller, IdempotencyKey, Manager, OpenStreams, RespondAsync, events_or, problems
from backend.server.disconnect import cancel_on_disconnect
from backend.server.error_handlers import respond, respond_problem
from backend.server.jobs import accepted_response
from backend.server.json_response import JsonResponse
from backend.server.sse import EventStream, Streams

router = APIRouter(prefix="/api", tags=["generate"])


@router.post(
    "/generate",
    response_model=Job,
    responses={
        200: events_or({"description": "The finished job; with `stream` its events"}),
        202: {"model": Job},
        **problems(409, 429, 502, 503, 504, 507),
    },
)
async def generate(
    body: GenerateRequest,
    request: Request,
    manager: Manager,
    caller: Caller,
    streams: OpenStreams,
    respond_async: RespondAsync,
    idempotency_key: IdempotencyKey,
) -> Response:
    """Generate on the requested device. Closing a waiting or streaming request cancels the job."""
    if body.stream and respond_async:
        raise Validation("stream and Prefer: respond-async exclude each other.", "Use one of them.")
    if body.stream:
        streams.check()  # before a job is accepted whose events cannot be sent
    job = await manager.generation.submit(body, caller, idempotency_key)
    if isinstance(job, str):
        return await _repeated(manager, job, streams if body.stream else None, respond_async)
    if respond_async:
        return accepted_response(job.view())
    await asyncio.sleep(0)  # lets the job reach its worker before the response headers are sent
    if body.stream:
        return EventStream(streams, job.follow(), _headers(job.id), job.cancelling.set)
    if not await cancel_on_disconnect(request, job.ended.wait()):
        job.cancelling.set()
    await job.ended.wait()
    return _finished(job.view())


async def _repeated(manager: ModelManager, job_id: str, streams: Streams | None, respond_async: bool) -> Response:
    """Return the response to a repeated Idempotency-Key: the same job. Closing the repeat never cancels it."""
    if respond_async:
        return accepted_response(await manager.registry.view(job_id))
    events = await manager.follow(job_id)
    assert events is not None, "a job always has events after id 0"
    if streams:
        return EventStream(streams, events, _headers(job_id))
    async for _ in events:
        pass
    return _finished(await manager.registry.view(job_id))


def _finished(view: JsonObject) -> Response:
    """Return the finished job: 200 if done, otherwise its problem with the job as an extra member."""
    headers = _headers(view["id"])
    if view["status"] == "done":
        try:
            return JSONResponse(view, headers=headers)
        except ValueError:  # a text or number that JSON cannot hold
            return JsonResponse(view, headers=headers)
    if view["error"]:
        return respond_problem(Problem(**view["error"]), headers, job=view)
    ending: TouchstoneError = cancelled()
    if view["status"] == "queued":
        detail = "The server stopped while the job was queued."
        ending = Interrupted(detail, f"The next start runs it: GET /api/jobs/{view['id']}.")
    return respond(ending, headers, job=view)


def _headers(job_id: str) -> dict[str, str]:
    return {"X-Job-Id": job_id}
