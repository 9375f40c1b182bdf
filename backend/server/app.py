"""Creates the FastAPI application for one manager."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import FastAPI

from backend import __version__
from backend.manager import ModelManager
from backend.server import (
    artifacts,
    bench,
    devices,
    error_handlers,
    events,
    files,
    generate,
    health,
    jobs,
    metrics,
    models,
    page,
    response_middleware,
    runtimes,
    security_middleware,
    session,
    sse,
)
from backend.server.auth_token import Token
from backend.server.openapi import description, docs_page
from backend.server.v1 import routes

ROUTERS = (
    *(health, devices, bench, models, runtimes, files, generate, jobs, artifacts, events, session, docs_page, metrics),
    *routes.MODULES,
)


def create_app(manager: ModelManager, token: Token | None = None) -> FastAPI:
    """Return the application. The caller starts and stops the manager. `token` defaults to that of the settings."""
    token = token or Token(manager.settings)
    app = FastAPI(
        title="Touchstone",
        version=__version__,
        description="Generates text and music on the devices of this machine. Each device is proved by a computation.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.manager = manager
    app.state.token = token
    app.state.streams = sse.Streams(manager.settings.server.follower_limit)
    for module in ROUTERS:
        app.include_router(module.router)
    description.install(app)
    page.install(app)
    error_handlers.install(app)
    app.add_middleware(
        security_middleware.SecurityMiddleware,
        settings=manager.settings.server,
        token=token,
        static=frozenset(page.addresses()),
    )
    public = urlsplit(manager.settings.server.public_url or "")
    app.add_middleware(response_middleware.ResponseMiddleware, prefix=public.path.rstrip("/"))
    return app
