"""PUT /api/files/{name}: a file that jobs will take, streamed to the disk; `inputs` of a job name it by its id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from backend.common.errors import BadRequest, TouchstoneError
from backend.jobs.uploads import Upload
from backend.server.dependencies import Manager, problems
from backend.server.error_handlers import respond
from backend.server.security_middleware import late

router = APIRouter(prefix="/api/files", tags=["files"])
_BODY = {"required": True, "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
SLOWEST_BYTES_PER_S = 1000


@router.put(
    "/{name:path}",
    response_model=Upload,
    responses=problems(413, 507),
    openapi_extra={"requestBody": _BODY},
)
async def put_file(name: str, request: Request, manager: Manager) -> Response:
    """Keeps the body as a file for a while: `files.keep_hours` after a job named it last."""
    declared = request.headers.get("content-length", "")
    kind = request.headers.get("content-type", "")
    content = _arriving(request, manager.settings.server.request_s)
    try:
        file = await manager.uploads.receive(name, content, kind, int(declared) if declared.isdigit() else None)
    except TouchstoneError as error:
        return respond(error, {"Connection": "close"}, path=request.url.path)  # the rest of the body is not read
    return JSONResponse(asdict(file))


async def _arriving(request: Request, pause_s: float) -> AsyncIterator[bytes]:
    """The body as it comes. Raises BadRequest when nothing or little comes for a while, or the caller has left."""
    chunks, clock = aiter(request.stream()), asyncio.get_running_loop().time
    began, come = clock(), 0
    while True:
        try:
            async with asyncio.timeout(pause_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise late(pause_s) from None
        except ClientDisconnect:
            raise BadRequest("The caller left before the file was whole.", "Send it again.") from None
        come += len(chunk)
        spent_s = clock() - began
        if spent_s > pause_s and come < SLOWEST_BYTES_PER_S * spent_s:  # such clients could take all connections
            raise BadRequest(
                f"The file came at less than {SLOWEST_BYTES_PER_S} bytes a second.", "Send it over a faster line."
            )
        yield chunk
