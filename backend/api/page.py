"""The page and its files: exactly those that lie in `frontend/`, each at its own name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse

FRONTEND = Path(__file__).parents[2] / "frontend"


def addresses() -> dict[str, Path]:
    """The files by the address they are served at; `/` is the page."""
    files = {f"/{file.relative_to(FRONTEND).as_posix()}": file for file in FRONTEND.rglob("*") if file.is_file()}
    return {"/": FRONTEND / "index.html", **files}


def install(app: FastAPI) -> None:
    """Adds one route for each file."""
    for address, file in addresses().items():
        app.add_api_route(address, _sender(file), methods=["GET", "HEAD"], include_in_schema=False, response_model=None)


def _sender(file: Path) -> Callable[[], Awaitable[FileResponse]]:
    async def send() -> FileResponse:
        return FileResponse(file, headers={"Cache-Control": "no-cache"})

    return send
