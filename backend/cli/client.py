"""The command line's way to the manager: through the running server of the data folder, or one of its own meanwhile.

Two owners of one data folder would spoil it, so a verb never opens the folder while a server has it.
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
from backend.common.config.settings import Settings
from backend.common.errors import Interrupted, TouchstoneError, from_code
from backend.common.types import Event
from backend.jobs.registry import PAGE
from backend.jobs.request import parse_request
from backend.jobs.uploads import read_chunks
from backend.manager import ModelManager
from backend.server.auth_token import token_for_calls

CALLER = "command line"
SILENCE_S = 180.0  # streams have a comment each 15 s, and the longest wait is that for devices
DEVICES_S = 120
PIECE_BYTES = 1 << 20


class Client(Protocol):
    """What the verbs ask for, wherever the manager is."""

    async def jobs(self, **query: Any) -> dict[str, Any]: ...
    async def job(self, job_id: str) -> dict[str, Any]: ...
    async def cancel(self, job_id: str) -> None: ...
    def generate(self, body: dict[str, Any]) -> AsyncIterator[Event]: ...
    def artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]: ...
    async def send_file(self, path: Path) -> str: ...


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[Client]:
    """A client for the data folder of the settings. Raises Configuration when a server holds it and does not answer."""
    async with open_manager(settings) as found:
        yield found if isinstance(found, HttpClient) else InProcessClient(found)


@contextlib.asynccontextmanager
async def open_manager(settings: Settings) -> AsyncIterator[HttpClient | ModelManager]:
    """The running server of the data folder, or a started manager of our own that ends with the block.

    Raises Configuration when a server holds the folder and does not answer.
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


async def devices(settings: Settings) -> dict[str, Any]:
    """The device list: the running server's, or what probes of our own find while no server runs."""
    async with remote(settings) as server:
        if server:
            return await server.devices()
    return await probed(settings)


async def probed(settings: Settings) -> dict[str, Any]:
    """The device list by probes of our own. Takes no data folder, and goes on with no job that waits in one."""
    manager = ModelManager(settings)
    await manager.probe_only()
    return manager.health.device_list()


@contextlib.asynccontextmanager
async def remote(settings: Settings) -> AsyncIterator[HttpClient | None]:
    """The running server of the data folder, or None. Raises Interrupted when it goes away meanwhile."""
    server = await asyncio.to_thread(running, settings)
    if server is None:
        yield None
        return
    url = server["url"]
    headers = {"X-Client-Id": CALLER}
    if token := token_for_calls(settings):
        headers["Authorization"] = f"Bearer {token}"
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=SILENCE_S, trust_env=False) as http:
            yield HttpClient(http)
    except httpx.TransportError as error:
        raise Interrupted(
            f"The server at {url} went away or fell silent ({str(error) or type(error).__name__}).",
            "Look at its log, start it again if it is gone, then repeat the command.",
        ) from error


class HttpClient:
    """A manager behind HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.url = str(http.base_url)

    async def devices(self) -> dict[str, Any]:
        """The device list, once nothing is being probed."""
        return await self._ask("GET", "/api/devices", params={"wait_s": DEVICES_S})

    async def jobs(self, **query: Any) -> dict[str, Any]:
        """A page of jobs."""
        return await self._ask(
            "GET", "/api/jobs", params={key: value for key, value in query.items() if value is not None}
        )

    async def job(self, job_id: str) -> dict[str, Any]:
        """One job."""
        return await self._ask("GET", f"/api/jobs/{job_id}")

    async def cancel(self, job_id: str) -> None:
        """Asks a job to end."""
        await self._ask("POST", f"/api/jobs/{job_id}/cancel")

    def generate(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        """Runs a job and yields its events; leaving cancels it."""
        parse_request(body)  # what is no JSON is refused in words before it is sent
        return self._stream("POST", "/api/generate", json={**body, "stream": True})

    async def artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]:
        """A file of a job, in pieces."""
        async with self._http.stream("GET", f"/api/jobs/{job_id}/artifacts/{quote(name)}") as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise _error(answer)
            async for chunk in answer.aiter_bytes():
                yield chunk

    async def send_file(self, path: Path) -> str:
        """Sends a file for a job's inputs; gives its id. Raises OSError for one that cannot be read."""
        size = path.stat().st_size
        with path.open("rb") as file:
            headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
            address = f"/api/files/{quote(path.name, safe='')}"
            found = await self._ask("PUT", address, content=read_chunks(file), headers=headers)
        return str(found["id"])

    def follow(self, job_id: str) -> AsyncIterator[Event]:
        """All events of a job; leaving changes nothing."""
        return self._stream("GET", f"/api/jobs/{job_id}/events")

    async def models(self) -> list[dict[str, Any]]:
        """All models."""
        found: list[dict[str, Any]] = (await self._ask("GET", "/api/models"))["models"]
        return found

    async def add_model(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Starts the download of a model, or joins it; gives the job."""
        return await self._ask("POST", "/api/models", json=asked)

    async def convert_model(self, model: str, to: str) -> dict[str, Any]:
        """Starts a conversion, or joins it; gives the job."""
        return await self._ask("POST", f"/api/models/{quote(model, safe='')}/convert", json={"to": to})

    async def remove_model(self, model: str) -> None:
        """Removes a model."""
        await self._ask("DELETE", f"/api/models/{quote(model, safe='')}")

    async def bench(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Starts a measurement, or joins it; gives the job."""
        return await self._ask("POST", "/api/bench", json=asked)

    async def measurements(self) -> dict[str, Any]:
        """What was measured before."""
        return await self._ask("GET", "/api/bench")

    async def runtimes(self) -> dict[str, Any]:
        """All runtimes, and the best one to install, once nothing is being probed."""
        await self.devices()
        return await self._ask("GET", "/api/runtimes")

    async def change_runtime(self, task: str, name: str) -> dict[str, Any]:
        """Starts a job on a runtime, or joins it; gives the job. `rollback` gives the Runtime."""
        return await self._ask("POST", f"/api/runtimes/{quote(name, safe='')}/{task}")

    async def remove_runtime(self, name: str) -> None:
        """Removes a runtime."""
        await self._ask("DELETE", f"/api/runtimes/{quote(name, safe='')}")

    async def _stream(self, method: str, path: str, **options: Any) -> AsyncIterator[Event]:
        async with self._http.stream(method, path, **options) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise _error(answer)
            async for event in _events(answer.aiter_lines()):
                yield event

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = await self._http.request(method, path, **options)
        if answer.status_code >= 400:
            raise _error(answer)
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found


class InProcessClient:
    """A manager in this process."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    async def jobs(self, **query: Any) -> dict[str, Any]:
        """A page of jobs."""
        status = query.get("status")
        return await self._manager.registry.views(
            status.split(",") if status is not None else [],
            query.get("task"),
            query.get("limit", PAGE),
            query.get("before"),
        )

    async def job(self, job_id: str) -> dict[str, Any]:
        """One job."""
        return await self._manager.registry.view(job_id)

    async def cancel(self, job_id: str) -> None:
        """Asks a job to end."""
        await self._manager.registry.cancel(job_id)

    async def generate(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        """Runs a job and yields its events; leaving cancels it."""
        job = await self._manager.submit(parse_request(body), CALLER)
        assert not isinstance(job, str), "only a request with an Idempotency-Key gives an id"
        try:
            async for event in job.follow():
                yield event
        finally:
            job.cancelling.set()

    async def artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]:
        """A file of a job, in pieces."""
        with (self._manager.artifacts.folder(job_id) / name).open("rb") as file:
            while chunk := file.read(PIECE_BYTES):
                yield chunk

    async def send_file(self, path: Path) -> str:
        """Keeps a copy of a file for a job's inputs; gives its id. Raises OSError for one that cannot be read."""
        return (await self._manager.uploads.import_file(path)).id


def _error(answer: httpx.Response) -> TouchstoneError:
    problem = answer.json()
    return from_code(problem["code"], problem["detail"], problem["remedy"])


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    """Server-sent events as this server writes them: one `data` line each."""
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
