"""How a waiting route learns that its caller has gone."""

from __future__ import annotations

from fastapi import Request


async def left(request: Request) -> None:
    """Returns when the caller has closed the connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
