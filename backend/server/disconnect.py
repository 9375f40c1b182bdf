"""Detects that the caller of a waiting route has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from fastapi import Request


async def wait_for_disconnect(request: Request) -> None:
    """Return when the caller has closed the connection. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(request: Request, *awaitables: Awaitable[object]) -> bool:
    """Wait for the first of the awaitables and cancel the others. Returns False if the caller disconnected first."""
    waiting = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    leaving = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({*waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return any(task.done() for task in waiting)
    finally:
        for task in (*waiting, leaving):
            task.cancel()
