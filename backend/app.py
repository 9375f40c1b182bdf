"""The FastAPI application over one manager."""

from __future__ import annotations

from fastapi import FastAPI

from backend import __version__
from backend.api import (
    devices,
    docs,
    events,
    generate,
    guard,
    health,
    jobs,
    metrics,
    models,
    page,
    problems,
    session,
    sse,
)
from backend.manager import ModelManager

ROUTERS = (health, devices, models, generate, jobs, events, session, docs, metrics)


def create_app(manager: ModelManager) -> FastAPI:
    """The application. Starting and stopping the manager is the caller's business."""
    app = FastAPI(
        title="Touchstone",
        version=__version__,
        description="Text generation on the devices of this machine, each proved by a computation.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.manager = manager
    app.state.streams = sse.Streams(manager.settings.server.follower_limit)
    for module in ROUTERS:
        app.include_router(module.router)
    page.install(app)
    problems.install(app)
    app.add_middleware(guard.Guard, settings=manager.settings, static=frozenset(page.addresses()))
    return app
