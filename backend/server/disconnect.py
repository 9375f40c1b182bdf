"""How a waiting route learns that its caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from fastapi import Request


async def wait_for_disconnect(request: Request) -> None:
    """Returns when the caller has closed the connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(request: Request, *waited: Awaitable[object]) -> bool:
    """Waits for the first of them; False if the caller left before. What is still waited for then is given up."""
    waiting = [asyncio.ensure_future(one) for one in waited]
    leaving = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({*waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return any(one.done() for one in waiting)
    finally:
        for one in (*waiting, leaving):
            one.cancel()
