"""Checks before every route (Host, Origin, token) and the headers of every response."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from backend.common.config.settings import load_settings
from backend.manager import ModelManager
from backend.server.app import ROUTERS, create_app
from backend.server.security_middleware import COOKIE, RESPONSE_HEADERS
from tests.conftest import MODEL
from tests.refusals import refused
from tests.service import ROOT, Server, furnished, start_server

TOKEN = "a-token-for-tests"
SHORT = {"prompt": "Say hello.", "options": {"max_tokens": 1}}
OPEN = ["/", "/style.css", "/main.js", "/api/health"]
CLOSED = [
    "/api/devices",
    "/api/models",
    "/api/jobs",
    "/api/jobs/x",
    "/api/jobs/x/events",
    "/docs",
    "/openapi.json",
    "/x",
]


# Host


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8000",
        "localhost.evil.com",
        "127.0.0.1.nip.io",
        "127.0.0.1.nip.io:8000",
        "localhost@evil.com",
        "evil.com#localhost",
        "localhost evil.com",
        "[::1].evil.com",
        "127.1.evil.com",
        "0x7f000001.nip.io",
        "xn--localhost-.com",
    ],
)
@pytest.mark.parametrize("path", ["/api/health", "/", "/nothing"])
def test_a_foreign_host_is_refused_on_every_route(server: Server, host: str, path: str) -> None:
    refused(server.http.get(path, headers={"Host": host}), 421, "forbidden_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_this_machines_names_are_accepted(server: Server, host: str) -> None:
    assert server.http.get("/api/health", headers={"Host": host}).status_code == 200


def test_a_request_without_a_host_is_refused(server: Server) -> None:
    answer = raw(server, b"GET /api/health HTTP/1.0\r\n\r\n")
    assert b" 421 " in answer.splitlines()[0] and b"forbidden_host" in answer
    assert b" 400 " in raw(server, b"GET /api/health HTTP/1.1\r\n\r\n").splitlines()[0]


def test_two_hosts_are_refused(server: Server) -> None:
    answer = raw(server, b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n")
    assert b" 200 " not in answer.splitlines()[0]


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
    ids=["tls", "no line", "negative", "both lengths", "bad chunk", "huge header"],
)
def test_what_is_no_http_harms_nobody(server: Server, request_: bytes) -> None:
    raw(server, request_)
    assert server.http.get("/api/health").status_code == 200


@pytest.mark.parametrize("body", [b"", b'{"device": "cpu"}'], ids=["nothing", "what could be all"])
@pytest.mark.parametrize("length", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_request_whose_body_never_came_whole_is_not_carried_out(server: Server, length: str, body: bytes) -> None:
    before = server.http.get("/api/jobs?limit=1").json()
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body and "chunked" in length else body
    head = f"POST /api/models/{MODEL}/load HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}"
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + chunk)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # the server has seen the end
    assert server.http.get("/api/jobs?limit=1").json() == before


def raw(server: Server, request_: bytes) -> bytes:
    """Sends bytes and returns what comes back until the server closes or is silent."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=1) as connection:
        try:
            connection.sendall(request_)
            while piece := connection.recv(65536):
                answer += piece
        except (TimeoutError, ConnectionError):
            pass
    return answer


# Origin


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "origin", ["https://evil.com", "null", "http://localhost", "http://127.0.0.1:1", "file://", "", "@.evil.com"]
)
def test_pages_of_other_origins_are_refused(server: Server, method: str, origin: str) -> None:
    headers = {"Origin": origin.replace("@", server.url)}
    refused(server.http.request(method, "/api/jobs", headers=headers), 403, "forbidden_origin")


@pytest.mark.parametrize("path", ["/", "/api/health", "/docs"])
def test_reading_from_a_foreign_page_is_refused_too(server: Server, path: str) -> None:
    refused(server.http.get(path, headers={"Origin": "https://evil.com"}), 403, "forbidden_origin")


def test_the_own_page_may_do_everything(server: Server) -> None:
    headers = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert server.http.post("/api/generate", json=SHORT, headers=headers).status_code == 200
    assert server.http.get("/api/jobs", headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_of_another_site_is_refused_even_without_an_origin(server: Server, site: str) -> None:
    headers = {"Sec-Fetch-Site": site}
    refused(server.http.post("/api/generate", json=SHORT, headers=headers), 403, "forbidden_origin")
    refused(server.http.delete("/api/jobs/x", headers=headers), 403, "forbidden_origin")
    assert server.http.get("/", headers=headers).status_code == 200, "a link from elsewhere opens the page"


def test_no_answer_invites_other_origins(server: Server) -> None:
    for path in ("/api/health", "/", "/api/jobs"):
        answer = server.http.get(path)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


# Headers of every answer


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("GET", "/", {}),
        ("GET", "/style.css", {}),
        ("GET", "/docs", {}),
        ("GET", "/openapi.json", {}),
        ("GET", "/api/health", {}),
        ("GET", "/nothing", {}),
        ("DELETE", "/api/health", {}),
        ("GET", "/api/jobs/x", {}),
        ("POST", "/api/generate", {"json": SHORT}),
        ("POST", "/api/generate", {"json": {**SHORT, "stream": True}}),
        ("POST", "/api/generate", {"json": {}}),
        ("POST", "/api/generate", {"data": {"prompt": "x"}}),
        ("POST", "/api/generate", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        ("GET", "/api/health", {"headers": {"Host": "evil.com"}}),
        ("GET", "/api/health", {"headers": {"Origin": "null"}}),
    ],
)
def test_every_answer_carries_the_guards_headers(
    server: Server, method: str, path: str, options: dict[str, Any]
) -> None:
    answer = server.http.request(method, path, **options)
    for name, value in RESPONSE_HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers


def test_a_failure_that_nobody_foresaw_is_a_problem_with_the_guards_headers(tmp_path: Path) -> None:
    """No request is known that fails so; a route that raises plays one."""
    app = create_app(ModelManager(load_settings({"storage.data_dir": str(tmp_path)}, {})))

    @app.get("/raises")
    def raises() -> None:
        raise RuntimeError("a secret of the inside")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/raises")

    answer = anyio.run(ask)
    refused(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert answer.headers["content-security-policy"] == RESPONSE_HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/generate", "POST"),
        ("DELETE", "/api/jobs", "GET, HEAD"),
        ("POST", "/api/health", "GET, HEAD"),
        ("OPTIONS", "/api/jobs/x", "GET, HEAD, DELETE"),
        ("PUT", "/", "GET, HEAD"),
    ],
)
def test_a_method_that_a_route_does_not_know_is_405(server: Server, method: str, path: str, allowed: str) -> None:
    answer = server.http.request(method, path)
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path", ["/nothing", "/api", "/api/", "/../etc/passwd", "/%2e%2e/config.yaml", "/index.html/x"]
)
def test_an_address_that_leads_nowhere_is_404(server: Server, path: str) -> None:
    refused(server.http.get(path), 404, "not_found")


# Token


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[Server]:
    """A server that wants a token."""
    folder = furnished(tmp_path_factory.mktemp("guarded") / "data", model_file)
    running = start_server(folder, environ={"TOUCHSTONE_TOKEN": TOKEN})
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize("path", CLOSED)
def test_without_the_token_only_the_page_and_health_are_open(guarded: Server, path: str) -> None:
    answer = guarded.http.get(path)
    refused(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", OPEN)
def test_the_page_and_health_are_open(guarded: Server, path: str) -> None:
    assert guarded.http.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/api/health/../jobs", "//api/jobs", "/API/jobs", "/api/health%2f..%2fjobs"])
def test_no_spelling_of_a_path_goes_around_the_token(guarded: Server, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(guarded, request.encode()).split()[1] in (b"401", b"404")


def test_nothing_can_be_changed_without_the_token(guarded: Server) -> None:
    for method, path in (("POST", "/api/generate"), ("DELETE", "/api/jobs/x"), ("POST", "/api/devices/refresh")):
        refused(guarded.http.request(method, path, json={}), 401, "unauthorized")


def test_health_tells_strangers_no_problems(guarded: Server) -> None:
    assert "problems" not in guarded.http.get("/api/health").json()
    known = guarded.http.get("/api/health", headers={"Authorization": f"Bearer {TOKEN}"})
    assert known.json()["problems"] == []


@pytest.mark.parametrize(
    "sent",
    [
        "Bearer wrong",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN.upper()}",
        "Bearer \xe9",
    ],
)
def test_a_wrong_token_is_refused(guarded: Server, sent: str) -> None:
    refused(guarded.http.get("/api/jobs", headers={b"Authorization": sent.encode("latin-1")}), 401, "unauthorized")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_the_token_opens_everything(guarded: Server, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {TOKEN}"}
    for path in ("/api/devices", "/api/models", "/api/jobs", "/docs", "/openapi.json"):
        assert guarded.http.get(path, headers=headers).status_code == 200
    assert guarded.http.post("/api/generate", json=SHORT, headers=headers).status_code == 200


def test_a_session_cookie_stands_for_the_token_and_does_not_contain_it(guarded: Server) -> None:
    answer = httpx.post(f"{guarded.url}/api/session", json={"token": TOKEN})
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    headers = {"Cookie": cookie.split(";")[0]}
    assert guarded.http.get("/api/jobs", headers=headers).status_code == 200
    assert guarded.http.post("/api/generate", json=SHORT, headers=headers).status_code == 200
    foreign = {**headers, "Origin": "https://evil.com"}
    refused(guarded.http.post("/api/generate", json=SHORT, headers=foreign), 403, "forbidden_origin")


@pytest.mark.parametrize("cookie", [f"{COOKIE}=x", f"{COOKIE}={TOKEN}", f"{COOKIE}=", "a=b; =;;", 'x="', f"y={TOKEN}"])
def test_a_wrong_cookie_is_refused(guarded: Server, cookie: str) -> None:
    refused(guarded.http.get("/api/jobs", headers={"Cookie": cookie}), 401, "unauthorized")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"token": "wrong"}, 401, "unauthorized"),
        ({"token": ""}, 401, "unauthorized"),
        ({"token": "é"}, 401, "unauthorized"),
        ({"token": 5}, 422, "validation_error"),
        ({}, 422, "validation_error"),
        ({"tokne": TOKEN}, 422, "validation_error"),
    ],
)
def test_a_session_is_refused_for_anything_but_the_token(
    guarded: Server, body: dict[str, Any], status: int, code: str
) -> None:
    answer = guarded.http.post("/api/session", json=body)
    refused(answer, status, code)
    assert "set-cookie" not in answer.headers
    assert TOKEN not in answer.text


def test_the_token_stands_in_no_log(guarded: Server) -> None:
    guarded.http.get("/api/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert TOKEN not in guarded.log.read_text()


def test_no_child_sees_the_token(guarded: Server) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    job = guarded.http.post("/api/generate", json=SHORT, headers=headers).json()
    assert TOKEN.encode() not in Path(f"/proc/{job['receipt']['worker_pid']}/environ").read_bytes()


def test_a_session_where_no_token_is_wanted_is_simply_granted(server: Server) -> None:
    answer = httpx.post(f"{server.url}/api/session", json={"token": "whatever"})
    assert answer.status_code == 204 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_bind_for_others_without_a_token_is_refused_at_the_start(data_dir: Path, host: str) -> None:
    words = [sys.executable, "-m", "backend", "serve", "--host", host, "--port", "0", "--data-dir", str(data_dir)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "token" in ended.stderr and "Traceback" not in ended.stderr


def test_a_bind_for_others_with_a_token_serves(data_dir: Path) -> None:
    server = start_server(data_dir, "--host", "0.0.0.0", environ={"TOUCHSTONE_TOKEN": TOKEN})
    try:
        assert server.url.startswith("http://127.0.0.1:")
        refused(server.http.get("/api/jobs"), 401, "unauthorized")
        refused(server.http.get("/api/health", headers={"Host": "evil.com"}), 421, "forbidden_host")
    finally:
        assert server.stop() == 0


def test_no_route_takes_a_thread_of_a_pool() -> None:
    """Health must not wait for a pool whose threads are taken, and a hop between threads costs more than the route."""

    def calls(dependant: Dependant) -> Iterator[Any]:
        yield dependant.call
        for inner in dependant.dependencies:
            yield from calls(inner)

    routes = [route for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 10
    for route in routes:
        for call in calls(route.dependant):
            assert inspect.iscoroutinefunction(call), f"{route.path}: {call}"
