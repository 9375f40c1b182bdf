"""2,000 malformed requests on the raw socket: no server error, and no request is carried out.

The seed is fixed; `TOUCHSTONE_RAW_SEED` and `TOUCHSTONE_RAW_COUNT` take others by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.service import Server, start_server, wait_for

SEED, COUNT = int(os.environ.get("TOUCHSTONE_RAW_SEED", "29")), int(os.environ.get("TOUCHSTONE_RAW_COUNT", "2000"))
LANES = 8
HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
Dice = random.Random
GOOD: dict[str, dict[str, Any]] = {
    "/api/generate": {"prompt": "Hello", "options": {"max_tokens": 1}, "device": "cpu"},
    "/v1/chat/completions": {"model": "x", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
    "/v1/completions": {"model": "x", "prompt": "Hello", "max_tokens": 1},
    "/v1/embeddings": {"model": "x", "input": "Hello"},
    "/api/models": {"source": "no-such-model"},
    "/api/devices/refresh": {"device": "no:such"},
    "/api/devices/cpu/release": {"model": "m"},
    "/api/models/x/load": {"device": "cpu"},
    "/api/jobs/x/rerun": {"device": "cpu"},
    "/api/session": {"token": "t"},
}
PATHS = [*GOOD, "/api/jobs", "/api/health", "/", "/api/jobs/%00", "/api/files/%2e%2e", "/metrics", "/api/events/x"]
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1e308,
    10**400,
    "",
    "\ud800",
    "\0",
    [],
    {},
    [[[]]],
    {"a": {}},
    "x" * 3000,
    "\u202e\x1b[31m",
)


def spoilt_json(dice: Dice) -> bytes:
    """A body that is no JSON object in UTF-8, or one whose members are not what they should be."""
    good = dict(GOOD[dice.choice(list(GOOD))])
    kind = dice.randrange(10)
    if kind == 0:
        good[dice.choice(list(good))] = dice.choice(VALUES)
    elif kind == 1:
        good[dice.choice(["x", "", "prompt\0", "__class__", "device ", "é"])] = dice.choice(VALUES)
    elif kind == 2:
        return json.dumps(dice.choice(VALUES)).encode()
    elif kind == 3:
        return b"[" * dice.choice([10, 5_000, 100_000])
    elif kind == 4:
        return b'{"a":' * dice.choice([10, 5_000, 50_000])
    text = json.dumps(good).encode()
    if kind == 5:
        return text[: dice.randrange(len(text))]
    if kind == 6:
        return text.decode().encode(dice.choice(["utf-16", "utf-32", "utf-16-be", "utf-8-sig", "cp037"]))
    if kind == 7:
        at = dice.randrange(len(text))
        return text[:at] + dice.randbytes(dice.randint(1, 6)) + text[at:]
    if kind == 8:
        return dice.choice(
            [b"NaN", b"Infinity", b'{"prompt": NaN}', b"{'prompt': 1}", b"\xff\xfe", b"", b"\xed\xa0\x80"]
        )
    return text + dice.choice([b"{}", b"\0", b",", b" x", b"\n\n{}"]) if kind == 9 else text


def spoilt_header(dice: Dice) -> bytes:
    """One header that is wrong, twice there, huge, or a lie."""
    noise = dice.randbytes(dice.randint(1, 30)).replace(b"\r", b"").replace(b"\n", b"")
    ways: list[Callable[[], bytes]] = [
        lambda: b"X-Noise: " + noise,
        lambda: noise + b": x",
        lambda: b"no colon at all",
        lambda: b" folded: x",
        lambda: b"X: a\r\n folded",
        lambda: b"Content-Length: 5",
        lambda: b"Content-Length: " + dice.choice([b"-1", b"+5", b"0x5", b"5, 5", b"5 5", b"9" * 30, b"", b"5\0"]),
        lambda: b"Transfer-Encoding: " + dice.choice([b"gzip", b"chunked, chunked", b"identity", b"\x0bchunked"]),
        lambda: b"Host: evil.example",
        lambda: b"Origin: " + dice.choice([b"null", b"http://evil.example", noise]),
        lambda: b"Authorization: Bearer " + noise,
        lambda: b"Cookie: " + dice.choice([noise, b"a=" * 500, b'touchstone_session="', b"touchstone_session=\\777"]),
        lambda: b"Idempotency-Key: " + dice.choice([noise, b"k" * 300, b""]),
        lambda: b"X-Client-Id: " + noise,
        lambda: b"Prefer: respond-async" + noise,
        lambda: b"Last-Event-ID: " + dice.choice([noise, b"9" * 40, b"-1", "٣".encode()]),
        lambda: b"Range: bytes=" + dice.choice([noise, b"5-1", b"-0", b"9" * 40 + b"-", b"0-1," * 50]),
        lambda: b"Content-Type: " + dice.choice([noise, b"text/plain", b"application/json; charset=utf-16", b""]),
        lambda: b"Content-Encoding: gzip",
        lambda: b"Expect: " + dice.choice([b"100-continue", noise]),
        lambda: b"Upgrade: websocket\r\nConnection: Upgrade",
        lambda: b"X-Huge: " + b"a" * dice.choice([5_000, 70_000]),
        lambda: b"\r\n".join(b"X-%d: y" % number for number in range(dice.choice([50, 2_000]))),
    ]
    return dice.choice(ways)()


def spoilt_line(dice: Dice) -> bytes:
    """A request line that is none, or asks for what there is not."""
    noise = dice.randbytes(dice.randint(1, 20))
    return dice.choice(
        [
            b"GET /" + noise + b" HTTP/1.1",
            b"GET  / HTTP/1.1",
            b"GET / HTTP/2.0",
            b"GET / HTTP/0.9",
            b"GET /",
            b"get /api/health HTTP/1.1",
            noise + b" / HTTP/1.1",
            b"PRI * HTTP/2.0",
            b"CONNECT evil.example:443 HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
            b"TRACE / HTTP/1.1",
            b"GET http://evil.example/api/health HTTP/1.1",
            b"GET //evil.example/%2e%2e/ HTTP/1.1",
            b"GET /api/jobs?limit=" + noise + b" HTTP/1.1",
            b"GET /api/jobs?before=%00&status=%ff&task=" + b"a" * 2000 + b" HTTP/1.1",
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
            b"DELETE /api/jobs/" + noise.hex().encode() + b" HTTP/1.1",
            b"POST /api/jobs/%F0%9F%98%80/cancel HTTP/1.1",
            b"GET /api/jobs/a/artifacts/..%2f..%2fjobs.sqlite3 HTTP/1.1",
            b"GET /api/devices?wait_s=nan HTTP/1.1",
            b"GET /api/jobs/x/events?after=1e5 HTTP/1.1",
        ]
    )


def framed(dice: Dice, body: bytes) -> tuple[bytes, bytes]:
    """The header that tells a body's length, and the body as it is sent: rightly, or wrong in one way."""
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    ways: list[Callable[[], tuple[bytes, bytes]]] = [
        lambda: (b"Content-Length: %d" % len(body), body),
        lambda: (b"Content-Length: %d" % len(body), body),
        lambda: (b"Content-Length: %d" % (len(body) + dice.randint(1, 99)), body),
        lambda: (b"Content-Length: %d" % max(0, len(body) - dice.randint(1, 99)), body),
        lambda: (b"Content-Length: %d" % 10**12, body),
        lambda: (b"Content-Length: %d\r\nContent-Length: 1" % len(body), body),
        lambda: (b"Content-Length: %d\r\nTransfer-Encoding: chunked" % len(body), chunk + b"0\r\n\r\n"),
        lambda: (b"Transfer-Encoding: chunked", chunk + b"0\r\n\r\n"),
        lambda: (b"Transfer-Encoding: chunked", chunk),
        lambda: (
            b"Transfer-Encoding: chunked",
            b"%x;a=%s\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(body), b"b" * 99, body),
        ),
        lambda: (
            b"Transfer-Encoding: chunked",
            dice.choice([b"-1", b"zz", b"f" * 40, b"0x1", b" 1"]) + b"\r\n" + body,
        ),
        lambda: (b"X: y", body),
    ]
    return dice.choice(ways)()


def spoilt(dice: Dice) -> bytes:
    """One malformed request; whatever is right in it, its model or its JSON is not, so no job can come of it."""
    path = dice.choice(PATHS)
    line = (
        spoilt_line(dice)
        if dice.random() < 0.3
        else f"{dice.choice(['POST', 'POST', 'PUT', 'GET'])} {path} HTTP/1.1".encode()
    )
    length, body = framed(dice, spoilt_json(dice))
    headers = [b"Host: localhost", b"Content-Type: application/json", length]
    for _ in range(dice.choice([0, 1, 1, 3])):
        headers.insert(dice.randrange(len(headers) + 1), spoilt_header(dice))
    ending = dice.choice([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])
    sent = line + ending + ending.join(headers) + ending * 2 + body
    if dice.random() < 0.1:
        sent = sent[: dice.randrange(len(sent))]
    return sent


def answers_to(server: Server, sent: bytes) -> bytes:
    """All that comes back: the client sends, says that it sends no more, and reads to the end."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            answer += piece
    return answer


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without any model, so that even a right request makes no job of text."""
    environ = {"TOUCHSTONE_SERVER__REQUEST_S": "3"}
    running = start_server(tmp_path_factory.mktemp("bare") / "data", environ=environ)
    running.http.get("/api/devices", params={"wait_s": 60})
    yield running
    running.stop(signal.SIGKILL)


def open_sockets(server: Server) -> int:
    """How many sockets the server has open."""
    found = 0
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(descriptor.readlink()).startswith("socket:")
    return found


def test_two_thousand_malformed_requests_fail_nothing_and_start_nothing(bare: Server) -> None:
    before = open_sockets(bare)
    lanes = [random.Random(SEED * 1000 + lane) for lane in range(LANES)]

    def lane(dice: Dice) -> list[tuple[bytes, bytes]]:
        return [(sent, answers_to(bare, sent)) for sent in (spoilt(dice) for _ in range(COUNT // LANES))]

    with ThreadPoolExecutor(LANES) as pool:
        pairs = [pair for found in pool.map(lane, lanes) for pair in found]
    seen: Counter[int] = Counter()
    for sent, answer in pairs:
        statuses = [int(status) for status in HEAD.findall(answer)]
        seen.update(statuses)
        assert not answer or HEAD.match(answer), (sent, answer)
        assert all(status < 500 for status in statuses), (sent, answer)
        for status, rest in zip(statuses, HEAD.split(answer)[2::2], strict=True):
            head, _, body = rest.partition(b"\r\n\r\n")
            if status >= 400:
                assert b"x-content-type-options: nosniff" in head.lower(), (sent, answer)
                assert b"problem+json" in head or b'{"error":' in body or b"HEAD" in sent[:5], (sent, answer)
    assert len(pairs) == COUNT // LANES * LANES and {400, 403, 404, 405, 413, 415, 421, 422} - {413} <= set(seen), seen
    assert bare.http.get("/api/health").json()["jobs"] == {"queued": 0, "running": 0}
    assert bare.http.get("/api/jobs").json()["jobs"] == []
    log = bare.log.read_text()
    wait_for(lambda: open_sockets(bare) <= before)
    assert "Traceback" not in log and "unhandled exception" not in log, log[-3000:]
