"""PUT /api/files/{name}: uploads a file for jobs, streamed to disk. `inputs` of a job name it by its id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from backend.common.errors import BadRequest, TouchstoneError
from backend.jobs.uploads import Upload
from backend.server.dependencies import Manager, problems
from backend.server.error_handlers import respond
from backend.server.json_response import JsonResponse
from backend.server.security_middleware import request_timeout

router = APIRouter(prefix="/api/files", tags=["files"])
_BODY = {"required": True, "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
MIN_BYTES_PER_S = 1000


@router.put(
    "/{name:path}",
    response_model=Upload,
    responses=problems(413, 507),
    openapi_extra={"requestBody": _BODY},
)
async def put_file(name: str, request: Request, manager: Manager) -> Response:
    """Store the body as a file. It expires `files.keep_hours` after the last job that named it."""
    declared = request.headers.get("content-length", "")
    kind = request.headers.get("content-type", "")
    content = _receive(request, manager.settings.server.request_s)
    try:
        file = await manager.uploads.receive(name, content, kind, int(declared) if declared.isdigit() else None)
    except TouchstoneError as error:
        return respond(error, {"Connection": "close"}, path=request.url.path)  # the rest of the body is not read
    return JsonResponse(asdict(file))


async def _receive(request: Request, pause_s: float) -> AsyncIterator[bytes]:
    """Yield the body in chunks. Raises BadRequest on a timeout, a slow upload, or a disconnect."""
    chunks, clock = aiter(request.stream()), asyncio.get_running_loop().time
    started_at, received_bytes = clock(), 0
    while True:
        try:
            async with asyncio.timeout(pause_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise request_timeout(pause_s) from None
        except ClientDisconnect:
            raise BadRequest("The connection closed during the upload.", "Upload the file again.") from None
        received_bytes += len(chunk)
        spent_s = clock() - started_at
        if spent_s > pause_s and received_bytes < MIN_BYTES_PER_S * spent_s:  # such clients could take all connections
            raise BadRequest(
                f"The upload was slower than {MIN_BYTES_PER_S} bytes per second.", "Upload over a faster connection."
            )
        yield chunk
