"""POST /api/generate: wait for the result, take the job and go, or follow its events as they come."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response

from backend.common.errors import Interrupted, TouchstoneError, Validation
from backend.common.types import Job, Problem
from backend.jobs.executor import cancelled
from backend.jobs.request import GenerateRequest
from backend.manager import ModelManager
from backend.server.dependencies import Caller, Manager, OpenStreams, RespondAsync, events_or, problems
from backend.server.disconnect import cancel_on_disconnect
from backend.server.error_handlers import respond, respond_problem
from backend.server.jobs import accepted
from backend.server.sse import EventStream, Streams

router = APIRouter(prefix="/api", tags=["generate"])


@router.post(
    "/generate",
    response_model=Job,
    responses={
        200: events_or({"description": "The finished job, or with `stream` its events"}),
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
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Response:
    """Generates on the device asked for. Leaving a waiting or streaming request cancels the job."""
    if body.stream and respond_async:
        raise Validation("stream and Prefer: respond-async exclude each other.", "Leave one of the two out.")
    if body.stream:
        streams.check()  # before there is a job that nobody could follow
    job = await manager.submit(body, caller, idempotency_key)
    if isinstance(job, str):
        return await _known(manager, job, streams if body.stream else None, respond_async)
    if respond_async:
        return accepted(job.view())
    await asyncio.sleep(0)  # the job's first steps come before the answer's head: they end in the worker's hands
    if body.stream:
        return EventStream(streams, job.follow(), _headers(job.id), job.cancelling.set)
    if not await cancel_on_disconnect(request, job.ended.wait()):
        job.cancelling.set()
    await job.ended.wait()
    return _answer(job.view())


async def _known(manager: ModelManager, job_id: str, streams: Streams | None, respond_async: bool) -> Response:
    """The answer to a repeated Idempotency-Key: the same job, which the repeat does not own and so never cancels."""
    if respond_async:
        return accepted(await manager.registry.view(job_id))
    events = await manager.follow(job_id)
    assert events is not None, "after nothing there is always an event to come"
    if streams:
        return EventStream(streams, events, _headers(job_id))
    async for _ in events:
        pass
    return _answer(await manager.registry.view(job_id))


def _answer(view: dict[str, Any]) -> Response:
    """The finished job as HTTP: 200 when done, else the problem with the job beside it."""
    headers = _headers(view["id"])
    if view["status"] == "done":
        return JSONResponse(view, headers=headers)
    if view["error"]:
        return respond_problem(Problem(**view["error"]), headers, job=view)
    ending: TouchstoneError = cancelled()
    if view["status"] == "queued":
        detail = "The server stopped while the job was waiting."
        ending = Interrupted(detail, f"The job runs after the next start: GET /api/jobs/{view['id']}.")
    return respond(ending, headers, job=view)


def _headers(job_id: str) -> dict[str, str]:
    return {"X-Job-Id": job_id}
