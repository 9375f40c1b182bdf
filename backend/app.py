"""The FastAPI application over one manager."""

from __future__ import annotations

from fastapi import FastAPI

from backend import __version__
from backend.api import (
    artifacts,
    bench,
    description,
    devices,
    docs,
    events,
    files,
    generate,
    guard,
    health,
    jobs,
    metrics,
    models,
    page,
    problems,
    runtimes,
    session,
    sse,
)
from backend.api.v1 import routes as v1
from backend.manager import ModelManager
from backend.token_file import Token

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
