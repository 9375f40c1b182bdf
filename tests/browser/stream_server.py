"""Servers for event streams: one long and fast stream, and one that disconnects once."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import Page

PIECE_BYTES = 8192
PIECE_EACH_S = 0.02  # some 3,000 tokens a second

Sender = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def between(page: Page, job_id: str, send: Sender) -> Iterator[None]:
    """Lets `send` answer the page's requests for the events of this job; `*` stands for any job."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name is the library's
            send(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"

    def to_here(url: str) -> str:
        return address + url[url.index("/api/") :]

    page.route(f"**/api/jobs/{job_id}/events*", lambda route: route.continue_(url=to_here(route.request.url)))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def begin(handler: BaseHTTPRequestHandler, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()


def paced(body: bytes) -> Sender:
    def send(handler: BaseHTTPRequestHandler) -> None:
        begin(handler)
        for start in range(0, len(body), PIECE_BYTES):
            handler.wfile.write(body[start : start + PIECE_BYTES])
            handler.wfile.flush()
            time.sleep(PIECE_EACH_S)

    return send


class CutOnce:
    """Passes on what the real server sends; the first line breaks in the middle of an event."""

    def __init__(self, url: str, after_bytes: int, replays: bool) -> None:
        """With `replays` the second line begins at the first event, as through a proxy that drops the position."""
        self.url, self.after_bytes, self.replays = url, after_bytes, replays
        self.resumed_after: list[str | None] = []

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        seen = handler.headers.get("Last-Event-ID")
        self.resumed_after.append(seen)
        left = self.after_bytes if len(self.resumed_after) == 1 else None
        request = urllib.request.Request(
            self.url + handler.path, headers={"Last-Event-ID": seen} if seen and not self.replays else {}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            begin(handler, answer.status)
            while piece := answer.read1(PIECE_BYTES if left is None else min(left, PIECE_BYTES)):
                handler.wfile.write(piece)
                handler.wfile.flush()
                if left is not None and (left := left - len(piece)) <= 0:
                    return
