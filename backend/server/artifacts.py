"""Serves the artifacts of jobs, completely or by byte ranges, so that a player can seek."""

from __future__ import annotations

import asyncio
import re

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from backend.common.errors import NotFound, RangeNotSatisfiable
from backend.server.dependencies import Manager, problems
from backend.server.error_handlers import respond

router = APIRouter(prefix="/api/jobs", tags=["jobs"])
_RANGE = re.compile(r"(\d{1,19})-(\d{0,19})|-(\d{1,19})", re.ASCII)  # no file has positions with more digits


@router.get(
    "/{job_id}/artifacts/{name}",
    response_class=FileResponse,
    responses={200: {"description": "The file"}, 206: {"description": "The requested byte range"}, **problems(416)},
)
async def read_artifact(job_id: str, name: str, request: Request, manager: Manager) -> Response:
    """Return a file of the job. Complete files of cancelled and running jobs are available as well."""
    view = await manager.registry.view(job_id)
    artifacts = view["output"]["artifacts"]
    artifact = next((artifact for artifact in artifacts if artifact["name"] == name), None)
    if artifact is None:
        names = [artifact["name"] for artifact in artifacts]
        raise NotFound(
            f"The job {job_id} has no file {name[:100]!r}.",
            f"Its files: {', '.join(names)}." if names else "It has no files yet; output.artifacts lists them.",
        )
    file = manager.artifacts.folder(job_id) / name
    if not await asyncio.to_thread(file.is_file):
        raise NotFound(f"The file {name} of the job {job_id} was deleted from disk.", "Rerun the job.")
    if refusal := _check_ranges(request, artifact["bytes"]):
        return respond(refusal, {"Content-Range": f"bytes */{artifact['bytes']}"})
    return FileResponse(file, media_type=artifact["media_type"], filename=name, content_disposition_type="inline")


def _check_ranges(request: Request, size: int) -> RangeNotSatisfiable | None:
    """Return an error for ranges beyond the end of the file. An invalid Range header is removed (RFC 9110, 14.2)."""
    header = request.headers.get("range")
    if header is None:
        return None
    unit, _, listed = header.partition("=")
    matches = [_RANGE.fullmatch(each.strip()) for each in listed.split(",")]
    ranges = [match for match in matches if match]
    backwards = any(match[1] and match[2] and int(match[2]) < int(match[1]) for match in ranges)
    if unit.strip().lower() != "bytes" or len(ranges) < len(matches) or backwards:
        request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]
        return None
    if any(int(match[1]) < size if match[1] else int(match[3]) > 0 for match in ranges):
        return None
    return RangeNotSatisfiable(
        f"The range {header[:100]} is beyond the end of the file ({size} bytes).", "Request a smaller range."
    )
