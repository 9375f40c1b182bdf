"""The jobs: the history, one job, its events, cancel, rerun and delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from backend.common.config.strict_model import Name, StrictModel
from backend.common.types import Job, JsonObject
from backend.jobs.registry import PAGE, PAGE_LIMIT
from backend.server.dependencies import After, Caller, Manager, OpenStreams, events_or, problems
from backend.server.json_response import JsonResponse, sendable
from backend.server.sse import EventStream

router = APIRouter(prefix="/api/jobs", tags=["jobs"])


class Rerun(StrictModel):
    """The device of the rerun. Default: that of the first run."""

    device: Name | None = None


def accepted_response(job: JsonObject) -> JsonResponse:
    """Return 202 with the job, and its address in `Location`."""
    return JsonResponse(job, 202, headers={"Location": f"/api/jobs/{job['id']}", "X-Job-Id": job["id"]})


@router.get("", responses=problems())
async def list_jobs(
    manager: Manager,
    status: str | None = None,
    task: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = PAGE,
    before: Annotated[str | None, Query(pattern="^[0-9a-f]{21}$")] = None,
) -> JsonObject:
    """Return jobs, newest first. `status` may list several, separated by commas. `before` is a job id."""
    statuses = status.split(",") if status is not None else []
    return sendable(await manager.registry.views(statuses, task, limit, before))


@router.get("/{job_id}", response_model=Job, responses=problems())
async def read_job(job_id: str, manager: Manager) -> JsonResponse:
    """Return one job with its text."""
    return JsonResponse(await manager.registry.view(job_id))


@router.get(
    "/{job_id}/events",
    response_class=Response,
    responses={200: events_or(), 204: {"description": "The client has received the terminal event"}, **problems(429)},
)
async def follow_job(job_id: str, manager: Manager, streams: OpenStreams, after: After) -> Response:
    """Stream the job's events as SSE after `Last-Event-ID` or `?after=`. Closing the stream never cancels the job."""
    events = await manager.follow(job_id, after)
    if events is None:
        return Response(status_code=204)
    streams.check()
    return EventStream(streams, events, {"X-Job-Id": job_id})


@router.post("/{job_id}/cancel", status_code=202, response_model=Job, responses=problems(409))
async def cancel_job(job_id: str, manager: Manager) -> JsonResponse:
    """Cancel the job. What it has generated so far is kept."""
    return JsonResponse(await manager.registry.cancel(job_id), 202)


@router.post("/{job_id}/rerun", status_code=202, response_model=Job, responses=problems(409, 429))
async def rerun_job(job_id: str, manager: Manager, caller: Caller, body: Rerun | None = None) -> JsonResponse:
    """Accept a new job with the same request."""
    job = await manager.generation.rerun(job_id, body.device if body else None, caller)
    return accepted_response(job.view())


@router.delete("/{job_id}", status_code=204, responses=problems(409))
async def delete_job(job_id: str, manager: Manager) -> Response:
    """Delete an ended job and its artifacts."""
    await manager.registry.delete(job_id)
    return Response(status_code=204)
