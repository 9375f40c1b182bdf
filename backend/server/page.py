"""Serves the page: exactly the files of `frontend/`, each at its own name, with gzip and ETag caching."""

from __future__ import annotations

import gzip
import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response

from backend.common.installation import program_file

FRONTEND = program_file("frontend")
TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}  # independent of the system's table of types


def addresses() -> dict[str, Path]:
    """Return the files by the path that they are served at; `/` is the page."""
    files = {f"/{file.relative_to(FRONTEND).as_posix()}": file for file in FRONTEND.rglob("*") if file.is_file()}
    return {"/": FRONTEND / "index.html", **files}


def install(app: FastAPI) -> None:
    """Add one route per file."""
    for address, file in addresses().items():
        app.add_api_route(address, _sender(file), methods=["GET"], include_in_schema=False, response_model=None)


def _sender(file: Path) -> Callable[[Request], Awaitable[Response]]:
    media_type = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0]
    packed: dict[str, bytes] = {}  # by ETag; holds the current version only

    async def send(request: Request) -> Response:
        facts = file.stat()
        tag = f'W/"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
        headers = {"Cache-Control": "no-cache", "ETag": tag, "Vary": "Accept-Encoding"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(file.read_bytes(), headers=headers, media_type=media_type)
        if tag not in packed:
            packed.clear()
            packed[tag] = gzip.compress(file.read_bytes(), 6, mtime=0)
        return Response(packed[tag], headers=headers | {"Content-Encoding": "gzip"}, media_type=media_type)

    return send
