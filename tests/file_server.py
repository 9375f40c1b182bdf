"""A web server with one file for download tests. It can cut, change, delay, forbid or redirect the download."""

from __future__ import annotations

import http.server
import re
import ssl
from dataclasses import dataclass
from email.message import Message

from tests.gated_server import GatedServer


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    headers: Message

    @property
    def range(self) -> str | None:
        """From which byte."""
        return self.headers.get("Range")


class FileServer(GatedServer):
    """Answers every path with the same file. Change the fields to make it misbehave."""

    def __init__(self, content: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.content = content
        self.etag: str | None = '"one"'
        self.last_modified: str | None = None
        self.headers: dict[str, str] = {}  # more headers of the file
        self.ranges = True
        self.length = True
        self.announced: int | None = None  # a Content-Length that is not true
        self.cuts: list[int] = []  # bytes after which an answer breaks off; one entry an answer
        self.statuses: list[tuple[int, dict[str, str]]] = []  # answers before the file, with headers
        self.redirects: dict[str, str] = {}  # path to address
        self.redirect_headers: dict[str, str] = {}
        self.gate_after = 0  # bytes of an answer after which it waits for the gate
        self.asked: list[Asked] = []
        self.bytes_sent = 0
        super().__init__(self.answer, tls, shake_hands=False)
        self.server.daemon_threads = True
        self.url = f"{self.origin}/models/tiny.gguf"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """One request."""
        self.asked.append(Asked(handler.path, handler.headers))
        if handler.path in self.redirects:
            self._send_head(handler, 302, {"Location": self.redirects[handler.path], **self.redirect_headers}, 0)
            return
        if self.statuses:
            status, headers = self.statuses.pop(0)
            self._send_head(handler, status, headers, 0)
            return
        start = self._start(handler.headers)
        if start is not None and start >= len(self.content):
            self._send_head(handler, 416, {"Content-Range": f"bytes */{len(self.content)}"}, 0)
            return
        body = self.content[start or 0 :]
        headers = dict(self.headers)
        if self.etag:
            headers["ETag"] = self.etag
        if self.last_modified:
            headers["Last-Modified"] = self.last_modified
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
        self._send_head(
            handler, 200 if start is None else 206, headers, (self.announced or len(body)) if self.length else None
        )
        cut = self.cuts.pop(0) if self.cuts else None
        body = body if cut is None else body[:cut]
        if not self.gate.is_set():
            self._write(handler, body[: self.gate_after])
            body = body[self.gate_after :]
            if not self.wait_at_gate(handler.connection):
                return
        self._write(handler, body)
        handler.close_connection = True

    def _start(self, headers: Message) -> int | None:
        match = re.fullmatch(r"bytes=(\d+)-", headers.get("Range") or "")
        condition = headers.get("If-Range")
        if not self.ranges or not match or condition not in (None, self.etag, self.last_modified):
            return None
        return int(match[1])

    def _write(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        try:
            for at in range(0, len(body), 16_384):
                handler.wfile.write(body[at : at + 16_384])
                self.bytes_sent += len(body[at : at + 16_384])
            handler.wfile.flush()
        except OSError:
            self.hung_up.set()

    def _send_head(
        self, handler: http.server.BaseHTTPRequestHandler, status: int, headers: dict[str, str], length: int | None
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if length is not None:
            handler.send_header("Content-Length", str(length))
        handler.end_headers()
