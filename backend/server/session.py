"""POST /api/session: the page exchanges the token for a cookie, since EventSource and audio send no headers."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.common import errors
from backend.common.config.strict_model import StrictModel
from backend.server.dependencies import problems
from backend.server.security_middleware import COOKIE, same, session_of

router = APIRouter(prefix="/api", tags=["session"])


class Session(StrictModel):
    """The server's token."""

    token: str


@router.post("/session", status_code=204, responses=problems(401))
async def open_session(body: Session, request: Request) -> Response:
    """Sets the cookie that stands for the token. Where no token is set, nothing needs one."""
    token: str | None = request.app.state.token.value
    if token and not same(body.token, token):
        raise errors.Unauthorized("That is not this server's token.", "`token show` on its machine tells it.")
    answer = Response(status_code=204)
    if token:
        answer.set_cookie(COOKIE, session_of(token), httponly=True, samesite="strict")
    return answer
