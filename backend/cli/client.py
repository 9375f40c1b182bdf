"""How the command line reaches the manager: in the running server of the data folder, or in this process.

Two managers would damage a data folder, so a verb never opens a folder that a server holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from backend.cli.daemon import running
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.errors import Interrupted, TouchstoneError, from_code
from backend.common.types import Event, JsonObject
from backend.jobs.generate_request import parse_request
from backend.jobs.registry import PAGE
from backend.jobs.uploads import read_chunks
from backend.manager import ModelManager
from backend.server.auth_token import token_for_calls

CALLER = "command line"
READ_TIMEOUT_S = 180.0  # streams send a comment every 15 s; the longest wait is DEVICES_TIMEOUT_S
DEVICES_TIMEOUT_S = 120
CHUNK_BYTES = 1 << 20


class Client(Protocol):
    """The requests of the verbs, independent of where the manager is."""

    async def jobs(self, **query: Any) -> JsonObject: ...
    async def job(self, job_id: str) -> JsonObject: ...
    async def cancel(self, job_id: str) -> None: ...
    def generate(self, body: JsonObject) -> AsyncIterator[Event]: ...
    def artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]: ...
    async def send_file(self, path: Path) -> str: ...


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[Client]:
    """Yield a client for the data folder. Raises Configuration if a server holds the folder but does not answer."""
    async with open_manager(settings) as manager:
        yield manager if isinstance(manager, HttpClient) else InProcessClient(manager)


@contextlib.asynccontextmanager
async def open_manager(settings: Settings) -> AsyncIterator[HttpClient | ModelManager]:
    """Yield a client of the running server, or without one a started manager, which stops after the block.

    Raises Configuration if a server holds the folder but does not answer.
    """
    async with remote(settings) as server:
        if server:
            yield server
            return
    manager = ModelManager(settings)
    await manager.start()
    try:
        yield manager
    finally:
        await manager.stop()


async def devices(settings: Settings) -> JsonObject:
    """Return the device list of the running server, or of probes in this process if no server runs."""
    async with remote(settings) as server:
        if server:
            return await server.devices()
    return await probed(settings)


async def probed(settings: Settings) -> JsonObject:
    """Return the device list of probes in this process. Opens no data folder and resumes no job."""
    manager = ModelManager(settings)
    await manager.probe_only()
    return manager.health.device_list()


@contextlib.asynccontextmanager
async def remote(settings: Settings) -> AsyncIterator[HttpClient | None]:
    """Yield a client of the data folder's running server, or None. Raises Interrupted if the connection is lost."""
    server = await asyncio.to_thread(running, settings)
    if server is None:
        yield None
        return
    url = server["url"]
    headers = {"X-Client-Id": CALLER}
    if token := token_for_calls(settings):
        headers["Authorization"] = f"Bearer {token}"
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=READ_TIMEOUT_S, trust_env=False) as http:
            yield HttpClient(http)
    except httpx.TransportError as error:
        raise Interrupted(
            f"Lost connection to the server at {url} ({str(error) or type(error).__name__}).",
            f"See its log; `{command('start')}` starts it again; then repeat the command.",
        ) from error


class HttpClient:
    """A client of a running server."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.url = str(http.base_url)

    async def devices(self) -> JsonObject:
        """Return the device list, after the running probes have ended."""
        return await self._request("GET", "/api/devices", params={"wait_s": DEVICES_TIMEOUT_S})

    async def jobs(self, **query: Any) -> JsonObject:
        """Return a page of jobs."""
        return await self._request(
            "GET", "/api/jobs", params={key: value for key, value in query.items() if value is not None}
        )

    async def job(self, job_id: str) -> JsonObject:
        """Return one job."""
        return await self._request("GET", f"/api/jobs/{job_id}")

    async def cancel(self, job_id: str) -> None:
        """Request a job to end."""
        await self._request("POST", f"/api/jobs/{job_id}/cancel")

    def generate(self, body: JsonObject) -> AsyncIterator[Event]:
        """Run a job and yield its events. Closing the iterator cancels the job."""
        parse_request(body)  # raises a clear error for values that are not JSON
        return self._stream("POST", "/api/generate", json={**body, "stream": True})

    async def artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]:
        """Yield a file of a job in chunks."""
        async with self._http.stream("GET", f"/api/jobs/{job_id}/artifacts/{quote(name)}") as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise _error(answer)
            async for chunk in answer.aiter_bytes():
                yield chunk

    async def send_file(self, path: Path) -> str:
        """Upload an input file and return its id. Raises OSError if it cannot be read."""
        size = path.stat().st_size
        with path.open("rb") as file:
            headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
            address = f"/api/files/{quote(path.name, safe='')}"
            upload = await self._request("PUT", address, content=read_chunks(file), headers=headers)
        return str(upload["id"])

    def follow(self, job_id: str) -> AsyncIterator[Event]:
        """Yield all events of a job. Closing the iterator does not affect the job."""
        return self._stream("GET", f"/api/jobs/{job_id}/events")

    async def models(self) -> JsonObject:
        """Return all models, and the recommended one."""
        return await self._request("GET", "/api/models")

    async def search_models(self, query: str, task: str | None, limit: int) -> list[JsonObject]:
        """Return what a search on Hugging Face finds."""
        asked = {"q": query, "limit": limit, **({"task": task} if task else {})}
        results: list[JsonObject] = (await self._request("GET", "/api/models/search", params=asked))["results"]
        return results

    async def importable_models(self) -> JsonObject:
        """Return the models of other programs on this machine, and the folders that were searched."""
        return await self._request("GET", "/api/models/importable")

    async def add_model(self, body: JsonObject) -> JsonObject:
        """Start the download of a model, or join a running one; return the job."""
        return await self._request("POST", "/api/models", json=body)

    async def convert_model(self, model: str, to: str) -> JsonObject:
        """Start a conversion, or join a running one; return the job."""
        return await self._request("POST", f"/api/models/{quote(model, safe='')}/convert", json={"to": to})

    async def remove_model(self, model: str) -> None:
        """Remove a model."""
        await self._request("DELETE", f"/api/models/{quote(model, safe='')}")

    async def bench(self, body: JsonObject) -> JsonObject:
        """Start a benchmark, or join a running one; return the job."""
        return await self._request("POST", "/api/bench", json=body)

    async def measurements(self) -> JsonObject:
        """Return the stored measurements."""
        return await self._request("GET", "/api/bench")

    async def runtimes(self) -> JsonObject:
        """Return all runtimes and the recommended one, after the running probes have ended."""
        await self.devices()
        return await self._request("GET", "/api/runtimes")

    async def change_runtime(self, task: str, name: str) -> JsonObject:
        """Start a job on a runtime, or join a running one; return the job. `rollback` returns the Runtime."""
        return await self._request("POST", f"/api/runtimes/{quote(name, safe='')}/{task}")

    async def remove_runtime(self, name: str) -> None:
        """Remove a runtime."""
        await self._request("DELETE", f"/api/runtimes/{quote(name, safe='')}")

    async def _stream(self, method: str, path: str, **options: Any) -> AsyncIterator[Event]:
        async with self._http.stream(method, path, **options) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise _error(answer)
            async for event in _events(answer.aiter_lines()):
                yield event

    async def _request(self, method: str, path: str, **options: Any) -> JsonObject:
        answer = await self._http.request(method, path, **options)
        if answer.status_code >= 400:
            raise _error(answer)
        content: JsonObject = answer.json() if answer.content else {}
        return content


class InProcessClient:
    """A client of a manager in this process."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    async def jobs(self, **query: Any) -> JsonObject:
        """Return a page of jobs."""
        status = query.get("status")
        return await self._manager.registry.views(
            status.split(",") if status is not None else [],
            query.get("task"),
            query.get("limit", PAGE),
            query.get("before"),
        )

    async def job(self, job_id: str) -> JsonObject:
        """Return one job."""
        return await self._manager.registry.view(job_id)

    async def cancel(self, job_id: str) -> None:
        """Request a job to end."""
        await self._manager.registry.cancel(job_id)

    async def generate(self, body: JsonObject) -> AsyncIterator[Event]:
        """Run a job and yield its events. Closing the iterator cancels the job."""
        job = await self._manager.submit(parse_request(body), CALLER)
        assert not isinstance(job, str), "only a request with an Idempotency-Key returns an id"
        try:
            async for event in job.follow():
                yield event
        finally:
            job.cancelling.set()

    async def artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]:
        """Yield a file of a job in chunks."""
        with (self._manager.artifacts.folder(job_id) / name).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    async def send_file(self, path: Path) -> str:
        """Copy an input file to the uploads and return its id. Raises OSError if it cannot be read."""
        return (await self._manager.uploads.import_file(path)).id


def _error(answer: httpx.Response) -> TouchstoneError:
    problem = answer.json()
    return from_code(problem["code"], problem["detail"], problem["remedy"])


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    """Parse server-sent events as this server writes them: one `data` line each."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}
