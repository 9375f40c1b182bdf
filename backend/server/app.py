"""The FastAPI application over one manager."""

from __future__ import annotations

from fastapi import FastAPI

from backend import __version__
from backend.manager import ModelManager
from backend.server import (
    artifacts,
    bench,
    devices,
    events,
    files,
    generate,
    health,
    jobs,
    metrics,
    models,
    page,
    runtimes,
    session,
    sse,
)
from backend.server import (
    error_handlers as problems,
)
from backend.server import (
    security_middleware as guard,
)
from backend.server.auth_token import Token
from backend.server.openapi import description
from backend.server.openapi import docs_page as docs
from backend.server.v1 import routes as v1

ROUTERS = (
    *(health, devices, bench, models, runtimes, files, generate, jobs, artifacts, events, session, docs, metrics),
    *v1.MODULES,
)


def create_app(manager: ModelManager, token: Token | None = None) -> FastAPI:
    """The application. Starting and stopping the manager is the caller's business; so is a token it is to share."""
    token = token or Token(manager.settings)
    app = FastAPI(
        title="Touchstone",
        version=__version__,
        description="Text and music on the devices of this machine, each proved by a computation.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.manager = manager
    app.state.token = token
    app.state.streams = sse.Streams(manager.settings.server.follower_limit)
    for module in ROUTERS:
        app.include_router(module.router)
    description.install(app)
    page.install(app)
    problems.install(app)
    app.add_middleware(guard.Guard, settings=manager.settings.server, token=token, static=frozenset(page.addresses()))
    return app
