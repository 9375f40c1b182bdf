"""The outermost middleware: HEAD, charset, gzip, paths in any spelling and the prefix of a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.server.response_middleware import ResponseMiddleware

LARGE = {"text": 'a quote: "url": "/api/x" ' * 200, "url": "/api/jobs/1/artifacts/a.wav"}


async def _large(request: Request) -> Response:
    return JSONResponse(LARGE, headers={"Vary": "Origin"})


async def _small(request: Request) -> Response:
    return JSONResponse({"path": request.url.path, "url": "/api/x"}, 202, {"Location": "/api/x"})


async def _sound(request: Request) -> Response:
    return Response(bytes(5000), media_type="audio/wav")


async def _text(request: Request) -> Response:
    return PlainTextResponse("x" * 400_000)


async def _events(request: Request) -> Response:
    async def forever() -> AsyncIterator[bytes]:
        while True:
            yield b'data: {"url":"/api/x"}\n\n'
            await asyncio.sleep(0)
            if request.method == "POST":
                return

    return StreamingResponse(forever(), media_type="text/event-stream")


ROUTES = [
    *(Route(path, answer) for path, answer in (("/large", _large), ("/a/b", _small), ("/s", _sound), ("/t", _text))),
    Route("/events", _events, methods=["GET", "POST"]),
    Route("/", _small),
]


def get(path: str, method: str = "GET", prefix: str = "", **headers: str) -> Any:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(ResponseMiddleware(Starlette(routes=ROUTES), prefix))
        async with httpx.AsyncClient(transport=transport) as client:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, f"http://localhost{path}", headers={"Accept-Encoding": "", **sent})

    return asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize("path", ["/a/b", "//a//b", "/a/b/", "///a/b//"])
def test_double_and_trailing_slashes_mean_the_same_path(path: str) -> None:
    assert get(path).json()["path"] == "/a/b"
    assert get("//").json()["path"] == "/"


@pytest.mark.parametrize("path", ["/a/b", "/large", "/s", "/t"])
def test_head_has_the_headers_of_get_and_no_body(path: str) -> None:
    asked, got = get(path, "HEAD"), get(path)
    assert asked.content == b"" and dict(asked.headers) == dict(got.headers)
    assert (asked.status_code, asked.headers["content-length"]) == (got.status_code, str(len(got.content)))


def test_head_of_an_endless_stream_ends() -> None:
    answer = get("/events", "HEAD")
    assert answer.content == b"" and answer.headers["content-type"].startswith("text/event-stream")


def test_json_names_its_charset() -> None:
    assert get("/a/b").headers["content-type"] == "application/json; charset=utf-8"
    assert get("/s").headers["content-type"] == "audio/wav"


@pytest.mark.parametrize(("path", "is_packed"), [("/large", True), ("/t", True), ("/a/b", False), ("/s", False)])
def test_large_texts_are_compressed_if_the_client_takes_it(path: str, is_packed: bool) -> None:
    plain, packed = get(path), get(path, Accept_Encoding="br, gzip")
    assert packed.content == plain.content
    assert (packed.headers.get("content-encoding") == "gzip") is is_packed
    assert ("Accept-Encoding" in packed.headers.get("vary", "")) is is_packed
    assert int(packed.headers["content-length"]) < len(plain.content) or not is_packed
    assert "content-encoding" not in plain.headers


def test_an_event_stream_is_never_compressed() -> None:
    answer = get("/events", "POST", Accept_Encoding="gzip")
    assert "content-encoding" not in answer.headers and answer.text.startswith("data: ")


def test_addresses_have_the_prefix_that_a_proxy_removed() -> None:
    answer = get("/a/b", X_Forwarded_Prefix="/stone/")
    assert answer.json()["url"] == "/stone/api/x" and answer.headers["location"] == "/stone/api/x"
    large = get("/large", X_Forwarded_Prefix="/stone", Accept_Encoding="gzip").json()
    assert large == {**LARGE, "url": "/stone/api/jobs/1/artifacts/a.wav"}, "text is not changed"
    assert get("/a/b", prefix="/outside").json()["url"] == "/outside/api/x"
    assert get("/events", "POST", X_Forwarded_Prefix="/s").text == 'data: {"url":"/s/api/x"}\n\n'


@pytest.mark.parametrize("prefix", ["stone", "//evil.example", "/a b", '/"', "/", "https://evil.example", ""])
def test_a_prefix_that_is_not_a_path_is_ignored(prefix: str) -> None:
    answer = get("/a/b", X_Forwarded_Prefix=prefix)
    assert answer.json()["url"] == "/api/x" and answer.headers["location"] == "/api/x"


def test_the_headers_of_a_stream_do_not_wait_for_its_first_event() -> None:
    async def run() -> list[str]:
        sent: list[str] = []
        started = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            )
            started.set()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message["type"])

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"accept-encoding", b"gzip")]}

        async def receive() -> Any:
            await asyncio.Event().wait()

        running = asyncio.create_task(ResponseMiddleware(app)(scope, receive, send))
        await started.wait()
        running.cancel()
        return sent

    assert asyncio.run(run()) == ["http.response.start"]
