"""Parts of the server with small applications: event streams, request headers, byte ranges, error documents, logs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from backend.common.config.settings import load_settings
from backend.common.config.strict_model import StrictModel
from backend.common.errors import Configuration, DiskFull, NotFound, QueueFull, RangeNotSatisfiable
from backend.common.types import Event
from backend.jobs.artifacts import ArtifactStore
from backend.server import artifacts, error_handlers, log_format
from backend.server.dependencies import CALLER_LIMIT, After, Caller, RespondAsync
from backend.server.disconnect import cancel_on_disconnect
from backend.server.sse import EventStream, ServerSent, Streams, data_line


def get(app: ASGIApp, path: str, headers: Any = (), **more: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=("10.0.0.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(more.pop("method", "GET"), path, headers=list(headers), **more)

    return asyncio.run(run())


def read_sse(text: str) -> Iterator[dict[str, str]]:
    """Parse a stream as the HTML standard says, and split lines as careless clients do (`splitlines`)."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line:
            if fields:
                yield fields
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = fields.get(name, "") + value.removeprefix(" ")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\\n\r\u2028\u2029\x85\x00é:'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("k\n:", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(json_values)
def test_any_data_is_one_line_of_an_event_for_every_reader(data: Any) -> None:
    (fields,) = read_sse(data_line(data))
    assert list(fields) == ["data"] and json.loads(fields["data"]) == data


def test_a_stream_has_the_ids_to_resume_from_and_must_not_be_buffered() -> None:
    async def events() -> AsyncIterator[Event]:
        for number in (3, 4, 9):
            yield Event(number, "token", {"text": "\u2028" * number})

    answer = get(EventStream(Streams(5), events(), {"X-Job-Id": "j"}), "/")
    assert answer.text.startswith(":") and answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-job-id"]) == ("no-store, no-transform", "j")
    assert answer.headers["x-accel-buffering"] == "no"
    found = [(fields["id"], fields["event"], json.loads(fields["data"])) for fields in read_sse(answer.text)]
    assert found == [(str(number), "token", {"text": "\u2028" * number}) for number in (3, 4, 9)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_calls_back_only_if_it_did_not_reach_its_end_and_always_gives_its_place_back(fails: bool) -> None:
    streams, left = Streams(1), list[bool]()

    async def pieces() -> AsyncIterator[str]:
        yield "a"
        with pytest.raises(QueueFull) as caught:
            streams.check()
        assert caught.value.extra["retry_after_s"] > 0
        if fails:
            raise ConnectionResetError

    response = ServerSent(streams, pieces(), on_leave=lambda: left.append(True))
    if fails:
        with pytest.raises(ConnectionResetError):
            get(response, "/")
    else:
        assert get(response, "/").text == "a"
    assert left == [True] * fails and streams.open == 0
    streams.check()


class Body(StrictModel):
    """A body with one field."""

    count: int


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    error_handlers.install(app)

    @app.get("/who")
    async def who(caller: Caller, respond_async: RespondAsync, after: After) -> dict[str, Any]:
        return {"caller": caller, "respond_async": respond_async, "after": after}

    @app.post("/count")
    @app.post("/v1/count")
    async def count(body: Body) -> int:
        return body.count

    @app.get("/full")
    @app.get("/v1/full")
    async def full() -> None:
        raise QueueFull("Full.", "Wait.", retry_after_s=7)

    @app.delete("/full")
    async def disk() -> None:
        raise DiskFull("No space.", "Free some.", needed_bytes=5)

    return app


CALLERS = [([], "10.0.0.7"), ([("X-Client-Id", "me")], "me"), ([("X-Client-Id", "")], "10.0.0.7")]


@pytest.mark.parametrize(("headers", "caller"), [*CALLERS, ([("X-Client-Id", "x" * 999)], "x" * CALLER_LIMIT)])
def test_a_caller_is_its_own_name_or_its_address(app: FastAPI, headers: Any, caller: str) -> None:
    assert get(app, "/who", headers).json()["caller"] == caller


PREFER = [
    ([], False),
    ([("Prefer", "respond-async")], True),
    ([("Prefer", "Respond-Async; wait=5")], True),
    ([("Prefer", "handling=lenient, respond-async")], True),
    ([("Prefer", "handling=lenient"), ("Prefer", "respond-async")], True),
    ([("Prefer", "respond-asynchronously")], False),
    ([("Prefer", "x=respond-async")], False),
]


@pytest.mark.parametrize(("headers", "expected"), PREFER)
def test_a_caller_that_prefers_not_to_wait_says_so_in_a_standard_header(
    app: FastAPI, headers: Any, expected: bool
) -> None:
    assert get(app, "/who", headers).json()["respond_async"] is expected


AFTER = [
    ("/who", [], 0),
    ("/who?after=7", [], 7),
    ("/who?after=7", [("Last-Event-ID", "9")], 9),
    ("/who?after=007", [], 7),
    ("/who?after=999999999999999", [], 999999999999999),
    ("/who?after=1000000000000000", [], None),
    ("/who?after=-1", [], None),
    ("/who?after=1.5", [], None),
    ("/who?after=%D9%A3", [], None),
    ("/who?after=x", [], None),
]


@pytest.mark.parametrize(("path", "headers", "after"), AFTER)
def test_a_follower_resumes_after_an_id_that_is_a_number(
    app: FastAPI, path: str, headers: Any, after: int | None
) -> None:
    answer = get(app, path, headers)
    assert answer.json().get("after") == after
    assert answer.status_code == (422 if after is None else 200)


ERRORS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", "/count", {"json": {"count": "1"}}, 422, "validation_error"),
    ("POST", "/count", {"json": {"count": 1, "more": 2}}, 422, "validation_error"),
    ("POST", "/v1/count", {"json": {"count": 1, "more": 2}}, 400, "unsupported_parameter"),
    ("POST", "/count", {"content": b"{"}, 400, "bad_json"),
    ("POST", "/count", {"content": b""}, 400, "bad_json"),
    ("POST", "/v1/count", {"content": b'{"count": \xff}'}, 400, "bad_json"),
    ("GET", "/nothing", {}, 404, "not_found"),
    ("GET", "/v1/nothing", {}, 404, "not_found"),
    ("PATCH", "/full", {}, 405, "method_not_allowed"),
    ("GET", "/full", {}, 429, "queue_full"),
    ("GET", "/v1/full", {}, 429, "queue_full"),
    ("DELETE", "/full", {}, 507, "disk_full"),
]


@pytest.mark.parametrize(("method", "path", "more", "status", "code"), ERRORS)
def test_every_error_has_the_shape_of_its_api(
    app: FastAPI, method: str, path: str, more: dict[str, Any], status: int, code: str
) -> None:
    answer = get(app, path, [("Content-Type", "application/json")], method=method, **more)
    body = answer.json()
    shown = body["error"] if path.startswith("/v1") else body
    assert (answer.status_code, shown["code"]) == (status, code)
    if not path.startswith("/v1"):
        assert answer.headers["content-type"] == "application/problem+json"
        assert body["status"] == status and body["detail"] and body["remedy"]
    if code == "queue_full":
        assert answer.headers["retry-after"] == "7"
    if code == "method_not_allowed":
        assert answer.headers["allow"] == "GET, HEAD, DELETE", "the methods of all routes at this path"
    assert code != "disk_full" or body["needed_bytes"] == 5


RANGES = [
    (None, 200, b"0123456789"),
    ("bytes=0-", 206, b"0123456789"),
    ("bytes=2-4", 206, b"234"),
    ("bytes=-3", 206, b"789"),
    ("bytes=8-99", 206, b"89"),
    ("bytes=10-", 416, None),
    ("bytes=-0", 416, None),
    ("bytes=4-2", 200, b"0123456789"),
    ("bytes=x", 200, b"0123456789"),
    ("bytes=", 200, b"0123456789"),
    ("lines=1-2", 200, b"0123456789"),
    ("bytes=1-2,x", 200, b"0123456789"),
    ("bytes=" + "9" * 30 + "-", 200, b"0123456789"),
]


@pytest.mark.parametrize(("range_", "status", "content"), RANGES)
def test_a_file_is_served_by_ranges_and_a_malformed_range_is_ignored(
    tmp_path: Path, range_: str | None, status: int, content: bytes | None
) -> None:
    app = _with_file(tmp_path, b"0123456789")
    answer = get(app, "/api/jobs/j/artifacts/a.wav", [("Range", range_)] if range_ else [])
    assert answer.status_code == status
    if content is None:
        assert answer.json()["code"] == RangeNotSatisfiable.code and answer.headers["content-range"] == "bytes */10"
    else:
        assert answer.content == content and answer.headers["content-type"] == "audio/wav"


def test_only_files_that_the_job_lists_and_that_are_still_there_are_served(tmp_path: Path) -> None:
    app = _with_file(tmp_path, b"x")
    (tmp_path / "j" / "hidden").write_text("secret")
    for name in ("hidden", "b.wav"):
        answer = get(app, f"/api/jobs/j/artifacts/{name}")
        assert answer.json()["code"] == NotFound.code and "a.wav" in answer.json()["remedy"]
    (tmp_path / "j" / "a.wav").unlink()
    assert "deleted" in get(app, "/api/jobs/j/artifacts/a.wav").json()["detail"]


def _with_file(folder: Path, content: bytes) -> FastAPI:
    (folder / "j").mkdir()
    (folder / "j" / "a.wav").write_bytes(content)
    listed = {"name": "a.wav", "media_type": "audio/wav", "bytes": len(content), "url": "/x"}

    async def view(job_id: str) -> dict[str, Any]:
        return {"output": {"artifacts": [listed]}}

    app = FastAPI()
    error_handlers.install(app)
    app.include_router(artifacts.router)
    app.state.manager = SimpleNamespace(registry=SimpleNamespace(view=view), artifacts=ArtifactStore(folder))
    return app


@pytest.mark.parametrize("leaves", [False, True])
def test_a_wait_ends_with_its_work_or_with_the_caller_and_leaves_no_task(leaves: bool) -> None:
    async def run() -> None:
        done = asyncio.Event()

        async def receive() -> Any:
            if not leaves:
                done.set()
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        request = Request({"type": "http", "headers": []}, receive)
        assert await cancel_on_disconnect(request, done.wait(), asyncio.Event().wait()) is not leaves
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, restored afterwards."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before[1]
    root.setLevel(before[0])


def _configure(folder: Path, **flags: Any) -> None:
    values = {f"log.{name}": value for name, value in {"file": str(folder / "logs" / "t.log"), **flags}.items()}
    log_format.configure(load_settings(values, {}))


FORMATS: list[tuple[bool, Callable[[str], bool]]] = [
    (True, lambda line: json.loads(line)["message"] == "hello" and json.loads(line)["job"] == "j"),
    (False, lambda line: line.endswith("backend.test: hello job=j") and "Z warning " in line),
]


@pytest.mark.parametrize(("as_json", "is_right"), FORMATS)
def test_a_log_file_has_a_line_for_each_record_from_its_level_on(
    tmp_path: Path, root_logger: logging.Logger, as_json: bool, is_right: Callable[[str], bool]
) -> None:
    _configure(tmp_path, json=as_json, level="warning")
    logging.getLogger("backend.test").warning("hello", extra={"job": "j"})
    logging.getLogger("backend.test").info("hidden")
    (line,) = (tmp_path / "logs" / "t.log").read_text().splitlines()
    assert is_right(line)


def test_a_full_log_file_is_rotated_and_old_ones_are_dropped(tmp_path: Path, root_logger: logging.Logger) -> None:
    _configure(tmp_path, file_bytes=2000, files=3)
    for number in range(100):
        logging.getLogger("backend.test").warning("line %s %s", number, "x" * 100)
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["t.log", "t.log.1", "t.log.2"]
    assert all(file.stat().st_size <= 2000 for file in files) and "line 99" in files[0].read_text()


def test_a_log_that_cannot_be_written_is_an_error_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, not a folder")
    with pytest.raises(Configuration, match="log"):
        _configure(tmp_path)
