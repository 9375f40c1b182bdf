"""POST /api/session: exchanges the token for a cookie. EventSource and audio elements cannot send headers."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common import errors
from backend.common.commands import command
from backend.common.config.strict_model import StrictModel
from backend.server.dependencies import problems
from backend.server.security_middleware import COOKIE, is_equal, session_cookie

router = APIRouter(prefix="/api", tags=["session"])


class Session(StrictModel):
    """The server's token."""

    token: str


@router.post("/session", status_code=204, responses=problems(401))
async def open_session(body: Session, request: Request) -> Response:
    """Set a session cookie in exchange for the token. Without a token in the settings, no cookie is needed."""
    token: str | None = request.app.state.token.value
    if token and not is_equal(body.token, token):
        raise errors.Unauthorized("Wrong token.", f"Run `{command('token show')}` on the server's machine to see it.")
    answer = Response(status_code=204)
    if token:
        answer.set_cookie(COOKIE, session_cookie(token), httponly=True, samesite="strict")
    return answer
