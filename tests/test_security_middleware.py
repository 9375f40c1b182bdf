"""The security middleware in front of a small ASGI application: Host, Origin, token, body size, type and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.common.config.settings import load_settings
from backend.common.errors import Configuration
from backend.server.auth_token import Token, kept_token, make_token
from backend.server.security_middleware import COOKIE, LARGE_AT_ONCE, LARGE_BYTES, SecurityMiddleware, session_cookie

TOKEN = "correct-horse-battery"
JSON = {"Content-Type": "application/json"}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the size of the body that arrived."""
    body = await Request(scope, receive).body()
    await JSONResponse({"bytes": len(body), "known": scope["state"]["known"]})(scope, receive, send)


def guarded(app: ASGIApp = echo, **flags: Any) -> SecurityMiddleware:
    settings = load_settings({f"server.{name}": value for name, value in flags.items()}, {})
    return SecurityMiddleware(app, settings.server, Token(settings), frozenset({"/", "/index.html"}))


def send(app: ASGIApp, method: str = "GET", path: str = "/api/jobs", host: str = "localhost", **more: Any) -> Any:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        headers = {"Host": host, **more.pop("headers", {})}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers, **more)

    return asyncio.run(run())


HOSTS = [
    ("localhost", 200),
    ("LOCALHOST:8080", 200),
    ("127.0.0.1:1", 200),
    ("[::1]:80", 200),
    ("[::1]", 200),
    ("192.168.7.9", 200),
    ("stone.example:443", 200),
    ("stone.example.", 200),
    ("localhost.", 200),
    ("host.docker.internal:8000", 200),
    ("proxy.example", 200),
    ("evil.example", 421),
    ("localhost.evil.example", 421),
    ("localhost@evil.example", 421),
    ("127.0.0.1.evil.example", 421),
    ("", 421),
]


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_the_host_header_must_name_this_server(host: str, status: int) -> None:
    answer = send(guarded(allowed_hosts=["Stone.Example"], public_url="https://proxy.example/x"), host=host)
    assert answer.status_code == status
    assert status == 200 or answer.json()["code"] == "forbidden_host"


ORIGINS = [
    ("GET", {}, 200),
    ("GET", {"Origin": "http://localhost:8080"}, 200),
    ("GET", {"Origin": "https://localhost:8080"}, 200),
    ("GET", {"Origin": "http://localhost"}, 403),
    ("GET", {"Origin": "null"}, 403),
    ("GET", {"Origin": ""}, 403),
    ("GET", {"Origin": "http://LOCALHOST:8080"}, 403),
    ("GET", {"Sec-Fetch-Site": "cross-site"}, 200),
    ("HEAD", {"Sec-Fetch-Site": "cross-site"}, 200),
    ("DELETE", {"Sec-Fetch-Site": "cross-site"}, 403),
    ("DELETE", {"Sec-Fetch-Site": "same-site"}, 403),
    ("DELETE", {"Sec-Fetch-Site": "same-origin"}, 200),
    ("DELETE", {"Sec-Fetch-Site": "none"}, 200),
]


@pytest.mark.parametrize(("method", "headers", "status"), ORIGINS)
def test_pages_of_other_sites_may_not_send_requests(method: str, headers: dict[str, str], status: int) -> None:
    answer = send(guarded(), method, host="localhost:8080", headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["code"] == "forbidden_origin"


NAMED = [
    ("https://stone.example", 200),
    ("http://stone.example:8443", 200),
    ("https://proxy.example", 200),
    ("https://stone.example.evil.example", 403),
    ("ftp://stone.example", 403),
    ("https://[", 403),
    ("http://localhost:3000", 403),
]


@pytest.mark.parametrize(("origin", "status"), NAMED)
def test_an_allowed_name_is_enough_behind_a_proxy_that_changes_the_host(origin: str, status: int) -> None:
    app = guarded(allowed_hosts=["stone.example"], public_url="https://proxy.example")
    headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    assert send(app, "POST", host="127.0.0.1:8000", headers=headers).status_code == status


PAGE = "https://chat.example"


def test_pages_of_allowed_origins_may_call_the_api() -> None:
    app = guarded(allowed_origins=[PAGE + "/", "http://other:1"])
    headers = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    answer = send(app, "POST", "/v1/chat/completions", headers=headers)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
    assert "X-Job-Id" in answer.headers["access-control-expose-headers"] and answer.headers["vary"] == "Origin"
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    refused = send(app, "POST", headers={**headers, "Content-Type": "text/plain"}, content=b"x")
    assert refused.status_code == 415 and refused.headers["access-control-allow-origin"] == PAGE, "readable errors"
    assert send(app, path="/", headers=headers).status_code == 403, "not the server's page"
    assert send(app, headers={"Origin": "https://evil.example"}).status_code == 403
    assert "access-control-allow-origin" not in send(app).headers
    assert send(guarded(allowed_origins=["*"]), headers={"Origin": "https://any.example"}).status_code == 200
    assert send(guarded(allowed_origins=["*"]), headers={"Origin": "null"}).status_code == 403


def test_a_preflight_needs_no_token_and_the_request_after_it_does() -> None:
    app = guarded(allowed_origins=[PAGE], token=TOKEN)
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = send(app, "OPTIONS", "/v1/chat/completions", headers=asked)
    assert answer.status_code == 204 and answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert send(app, "OPTIONS", headers={**asked, "Origin": "https://evil.example"}).status_code == 403
    assert send(app, "POST", headers={"Origin": PAGE}).status_code == 401


@pytest.mark.parametrize("value", ["chat.example", "https://chat.example/path", "", "https://"])
def test_an_origin_in_the_settings_is_a_scheme_and_a_host(value: str) -> None:
    with pytest.raises(Configuration, match="allowed_origins"):
        guarded(allowed_origins=[value])


CREDENTIALS = [
    ({"X-Api-Key": TOKEN}, True),
    ({"Api-Key": TOKEN}, True),
    ({"X-Api-Key": f"Bearer {TOKEN}"}, False),
    ({"X-Api-Key": ""}, False),
    ({"Authorization": f"Bearer {TOKEN}"}, True),
    ({"Authorization": f"bearer   {TOKEN} "}, True),
    ({"Authorization": f"Basic {TOKEN}"}, False),
    ({"Authorization": TOKEN}, False),
    ({"Authorization": f"Bearer {TOKEN}x"}, False),
    ({"Authorization": f"Bearer {TOKEN[:-1]}"}, False),
    ({"Authorization": "Bearer"}, False),
    ({"Cookie": f"{COOKIE}={session_cookie(TOKEN)}"}, True),
    ({"Cookie": f"other=1; {COOKIE}={session_cookie(TOKEN)}"}, True),
    ({"Cookie": f"{COOKIE}={TOKEN}"}, False),
    ({"Cookie": f"{COOKIE}={session_cookie(TOKEN + 'x')}"}, False),
    ({"Cookie": "\x7f="}, False),
    ({}, False),
]


@pytest.mark.parametrize(("headers", "is_known"), CREDENTIALS)
def test_a_caller_needs_the_token_or_the_cookie(headers: dict[str, str], is_known: bool) -> None:
    app = guarded(token=TOKEN)
    answer = send(app, headers=headers)
    assert answer.status_code == (200 if is_known else 401)
    if not is_known:
        assert answer.json()["code"] == "unauthorized" and answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    public = send(app, path="/api/health", headers=headers)
    assert public.json() == {"bytes": 0, "known": is_known}, "a public path answers, and knows who asks"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/index.html", 200), ("/api/session", 200), ("/api/health/", 401), ("//", 401), ("/API/health", 401)],
)
def test_only_exact_public_paths_are_open(path: str, status: int) -> None:
    assert send(guarded(token=TOKEN), path=f"http://localhost{path}").status_code == status


BODIES = [
    ("POST", "/api/x", b"{}", JSON, 200, None),
    ("POST", "/api/x", b"{}", {"Content-Type": "Application/JSON; charset=utf-8"}, 200, None),
    ("POST", "/api/x", b"", {}, 200, None),
    ("POST", "/api/x", b"", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
    ("POST", "/api/x", b"{}", {}, 415, "unsupported_media_type"),
    ("PUT", "/api/x", b"a=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    ("PATCH", "/api/x", b"x", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
    ("DELETE", "/api/x", b"x", {"Content-Type": "text/plain"}, 200, None),
    ("POST", "/api/x", '"x"'.encode("utf-16-le"), JSON, 400, "bad_json"),
    ("POST", "/api/x", b"x" * 2001, JSON, 413, "payload_too_large"),
    ("POST", "/api/x", b"x" * 2000, JSON, 200, None),
    ("PUT", "/api/files/a.wav", b"x" * 2001, {"Content-Type": "audio/wav"}, 200, None),
    ("PUT", "/api/filesx", b"x" * 2001, {"Content-Type": "audio/wav"}, 413, "payload_too_large"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "code"), BODIES)
def test_a_body_is_json_of_limited_size_except_for_uploads(
    method: str, path: str, body: bytes, headers: dict[str, str], status: int, code: str | None
) -> None:
    answer = send(guarded(body_limit_bytes=2000), method, path, headers=headers, content=body)
    assert answer.status_code == status
    assert answer.json().get("code") == code
    if status == 200:
        assert answer.json()["bytes"] == len(body)


async def chunks(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b" " * size


def test_a_body_without_a_declared_size_is_counted_as_it_arrives() -> None:
    app = guarded(body_limit_bytes=2000)
    assert send(app, "POST", headers=JSON, content=chunks(1000, 1000)).json()["bytes"] == 2000
    refused = send(app, "POST", headers=JSON, content=chunks(1000, 1000, 1))
    assert refused.status_code == 413 and refused.headers["connection"] == "close"


async def call(app: ASGIApp, messages: list[Any], method: str = "POST") -> list[Any]:
    """Send raw ASGI messages; after the last one nothing arrives any more. Returns what the application sent."""
    sent: list[Any] = []
    pending = list(messages)

    async def receive() -> Any:
        if not pending:
            await asyncio.Event().wait()
        return pending.pop(0)

    async def note(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": "/api/x", "headers": headers, "query_string": b""}
    await app(scope, receive, note)
    return sent


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_caller_that_disconnects_during_its_body_reaches_no_route() -> None:
    calls: list[str] = []

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope["path"])

    sent = asyncio.run(call(guarded(route), [part(b"{"), {"type": "http.disconnect"}]))
    assert sent[0]["status"] == 400 and not calls


def test_a_body_that_stops_arriving_times_out() -> None:
    sent = asyncio.run(call(guarded(request_s=0.05), [part(b"{")]))
    assert sent[0]["status"] == 400 and (b"connection", b"close") in sent[0]["headers"]
    assert b"timed out" in sent[1]["body"]


def test_only_some_large_bodies_are_read_at_once_and_small_ones_pass() -> None:
    async def run() -> None:
        app = guarded()
        large = [part(b" " * (LARGE_BYTES + 1))]
        waiting = [asyncio.create_task(call(app, list(large))) for _ in range(LARGE_AT_ONCE)]
        late = asyncio.create_task(call(app, [*large, part(b"", more=False)]))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not late.done(), "its first chunk was read, the rest waits for a free place"
        assert (await call(app, [part(b"{}", more=False)]))[0]["status"] == 200
        waiting[0].cancel()
        assert (await asyncio.wait_for(late, 2))[0]["status"] == 200
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())


def test_an_exception_before_the_response_becomes_a_problem_and_one_after_its_start_breaks_it_off() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret detail")

    answer = send(guarded(fail))
    assert answer.status_code == 500 and answer.json()["code"] == "internal_error" and "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"

    async def fail_late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("late")

    with pytest.raises(RuntimeError, match="late"):
        send(guarded(fail_late))


def test_a_route_may_set_its_own_policy_and_other_scopes_pass_unchecked() -> None:
    own = {"Content-Security-Policy": "default-src 'none'"}
    answer = send(guarded(Response("x", headers=own)))
    assert answer.headers.get_list("content-security-policy") == ["default-src 'none'"]
    assert answer.headers["referrer-policy"] == "no-referrer"
    seen: list[str] = []

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing() -> Any:
        raise AssertionError("the middleware read a message")

    asyncio.run(guarded(lifespan)({"type": "lifespan"}, nothing, nothing))  # type: ignore[arg-type]
    assert seen == ["lifespan"]


def test_a_new_token_file_takes_effect_at_once_and_a_broken_one_does_not(tmp_path: Path) -> None:
    settings = load_settings({"storage.data_dir": str(tmp_path), "server.host": "0.0.0.0"}, {})
    token = Token(settings)
    assert token.value is None
    first = make_token(tmp_path)
    assert token.value == first == kept_token(tmp_path) and (tmp_path / "token").stat().st_mode & 0o077 == 0
    for broken in ("short", "", "has a space in its middle", "\xff" * 20):
        (tmp_path / "token").write_text(broken, encoding="latin-1")
        assert token.value == first
    (tmp_path / "token").unlink()
    assert token.value == first and kept_token(tmp_path) is None
    second = make_token(tmp_path)
    assert token.value == second != first
