"""Slow, idle, numerous or malformed clients do not block other clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from backend.common.config.settings import load_settings
from backend.server.auth_token import Token
from backend.server.security_middleware import LARGE_AT_ONCE, LARGE_BYTES, SecurityMiddleware
from tests.service import Server, start_server

REQUEST_S, LIMIT = 1.0, 20
POST = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environ = {"TOUCHSTONE_SERVER__REQUEST_S": str(REQUEST_S), "TOUCHSTONE_SERVER__CONNECTION_LIMIT": str(LIMIT)}
    running = start_server(tmp_path_factory.mktemp("strict") / "data", environ=environ)
    yield running
    running.stop(signal.SIGKILL)


def connect(server: Server) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            answer += piece
    return answer


def ask(connection: socket.socket) -> None:
    """One request over a connection that is kept."""
    connection.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = HTTPResponse(connection)
    answer.begin()
    assert answer.status == 200 and json.loads(answer.read())


def problem(answer: bytes) -> dict[str, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in head, answer
    assert b"x-content-type-options: nosniff" in head.lower() and b"connection: close" in head.lower()
    said: dict[str, str] = json.loads(body)
    assert said["code"] == "bad_request" and said["remedy"]
    return said


@pytest.mark.parametrize("sent", [b"GET /api/health HTTP/1.1\r\nHost: loc", b"G", POST, POST + b'{"prompt": "ha'])
def test_a_request_that_never_comes_whole_is_answered_and_dropped(strict: Server, sent: bytes) -> None:
    with connect(strict) as connection:
        connection.sendall(sent)
        assert "timed out after 1 s" in problem(rest(connection))["detail"]


def test_a_connection_that_asks_nothing_is_closed_without_a_word(strict: Server) -> None:
    with connect(strict) as connection:
        assert rest(connection) == b""


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"SSH-2.0-x\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_no_http_gets_a_problem(strict: Server, sent: bytes) -> None:
    with connect(strict) as connection:
        connection.sendall(sent + b"\r\n\r\n")
        problem(rest(connection))


def test_the_clock_runs_for_requests_alone(strict: Server) -> None:
    """A connection that is kept, and one that reads a stream, live longer than a request may take."""
    with connect(strict) as stream, connect(strict) as kept:
        ask(kept)
        stream.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in stream.recv(65536)
        for _ in range(3):
            ask(kept)
            time.sleep(REQUEST_S)  # what is tested is that this pause has no effect
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):
            while stream.recv(65536):  # events of devices, but no end
                pass


def test_a_crowd_is_dropped_and_those_inside_are_served(strict: Server) -> None:
    with contextlib.ExitStack() as stack:
        inside = stack.enter_context(connect(strict))
        ask(inside)
        crowd = [stack.enter_context(connect(strict)) for _ in range(3 * LIMIT)]
        assert [rest(one) for one in crowd[2 * LIMIT :]] == [b""] * LIMIT
        ask(inside)
    with connect(strict) as connection:
        connection.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in rest(connection)


def test_of_large_bodies_only_some_are_in_memory_at_once(tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path)}, {})
    answered, inside, most, go_on = 0, 0, 0, asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal answered
        answered += len((await receive())["body"]) > LARGE_BYTES

    async def one(guard: SecurityMiddleware) -> None:
        parts = 0

        async def receive() -> Message:
            nonlocal parts, inside, most
            parts += 1
            if parts == 1:
                return {"type": "http.request", "body": b'"' + b"x" * LARGE_BYTES, "more_body": True}
            inside += 1
            most = max(most, inside)
            await go_on.wait()
            inside -= 1
            return {"type": "http.request", "body": b'"', "more_body": False}

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        await guard({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, unsent)

    async def unsent(message: Message) -> None:
        raise AssertionError(message)

    async def play() -> None:
        guard = SecurityMiddleware(app, settings.server, Token(settings), frozenset())
        crowd = [asyncio.create_task(one(guard)) for _ in range(3 * LARGE_AT_ONCE)]
        while inside < LARGE_AT_ONCE:
            await asyncio.sleep(0)
        for _ in range(100):  # whoever could come in beside them would
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*crowd)

    asyncio.run(play())
    assert (most, answered) == (LARGE_AT_ONCE, 3 * LARGE_AT_ONCE)
