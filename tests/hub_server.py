"""A server with the part of Hugging Face's API that downloads use, and a content network next to it.

The answers follow what huggingface.co sends: large files by a redirect that tells size and SHA-256 and leads to another
origin, small ones directly with Git's SHA-1 as ETag; a list of files with sizes; errors by `X-Error-Code`.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".gguf", ".safetensors", ".data", ".onnx", ".bin")


@dataclass
class Repository:
    """Files by name; `token` is what one must have to see it, `gated` that its licence was not accepted."""

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str | None = None
    gated: bool = False
    licence: str | None = None
    downloads: int = 10
    task: str | None = "text-generation"
    tags: tuple[str, ...] = ("gguf",)


@dataclass(frozen=True)
class Asked:
    """One request: `origin` is `hub` or `cdn`."""

    origin: str
    method: str
    path: str
    headers: Message


@dataclass
class HubServer:
    """Change the fields to make it misbehave."""

    repositories: dict[str, Repository]
    asked: list[Asked] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # bytes after which an answer of the content network breaks off
    statuses: list[int] = field(default_factory=list)  # answers of the hub before the right ones
    swapped: dict[str, bytes] = field(default_factory=dict)  # what the content network gives instead
    sizes: dict[str, int] = field(default_factory=dict)  # what is announced instead, by a file's name
    no_commit: bool = False
    page: int = 1000  # repositories in one page of a search
    headers: dict[str, str] = field(default_factory=dict)  # with `statuses`
    body: bytes | None = None  # what a search gets instead
    bytes_sent: int = 0

    def __enter__(self) -> HubServer:
        self.gate = threading.Event()
        self.gate.set()
        self.gate_after = 0  # bytes of a large file after which it waits for the gate
        self.hung_up = threading.Event()
        self._servers = [_serve(self, origin) for origin in ("hub", "cdn")]
        self.url, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server, _ in self._servers)
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join()

    def downloads(self) -> list[str]:
        """The files that were asked for as such."""
        return [one.path for one in self.asked if one.method == "GET" and "/api/" not in one.path]

    def answer(self, handler: http.server.BaseHTTPRequestHandler, origin: str) -> None:
        """One request."""
        path = urllib.parse.unquote(urllib.parse.urlsplit(handler.path).path)
        self.asked.append(Asked(origin, handler.command, path, handler.headers))
        if origin == "cdn":
            name = path.removeprefix("/")
            self._give(handler, self.swapped.get(name) or self._by_sum(name), f'"{name}"')
            return
        if self.statuses:
            _send(handler, self.statuses.pop(0), self.headers)
            return
        if path == "/api/models":
            self._search(handler)
            return
        listed = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not listed and not file:
            _send(handler, 404, {})
            return
        match = listed or file
        assert match
        found = self.repositories.get(match[1])
        refusal = self._refused(found, match[2] or "main", handler.headers)
        if refusal or found is None:
            _send(handler, *(refusal or (401, {"X-Error-Code": "RepoNotFound"})))
        elif listed:
            _send(handler, 200, {"Content-Type": "application/json"}, _listing(match[1], found))
        else:
            self._resolve(handler, found, match[3])

    def _search(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """List the repositories whose names have all words, a page at a time, as the hub does."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(handler.path).query)
        words = query["search"][0].lower().split()
        found = [
            _summary(name, one)
            for name, one in sorted(self.repositories.items(), key=lambda pair: -pair[1].downloads)
            if all(word in name.lower() for word in words) and set(query.get("filter", [])) <= set(one.tags)
        ]
        start, size = int(query.get("cursor", ["0"])[0]), min(self.page, int(query["limit"][0]))
        headers = {"Content-Type": "application/json"}
        if start + size < len(found):
            following = urllib.parse.urlencode({**query, "cursor": start + size}, doseq=True)
            headers["Link"] = f'<{self.url}/api/models?{following}>; rel="next"'
        answer = json.dumps(found[start : start + size]).encode()
        _send(handler, 200, headers, answer if self.body is None else self.body)

    def _refused(self, found: Repository | None, revision: str, sent: Message) -> tuple[int, dict[str, str]] | None:
        if found is None or (found.token and sent.get("Authorization") != f"Bearer {found.token}"):
            return 401, {"X-Error-Code": "RepoNotFound"}
        if found.gated:
            return 403, {"X-Error-Code": "GatedRepo"}
        return None if revision in ("main", found.commit) else (404, {"X-Error-Code": "RevisionNotFound"})

    def _resolve(self, handler: http.server.BaseHTTPRequestHandler, found: Repository, name: str) -> None:
        commit = {} if self.no_commit else {"X-Repo-Commit": found.commit}
        if name not in found.files:
            _send(handler, 404, {"X-Error-Code": "EntryNotFound", **commit})
            return
        content = found.files[name]
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(content).hexdigest()
            linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(self.sizes.get(name, len(content)))}
            _send(handler, 302, {**commit, **linked, "Location": f"{self.cdn}/{sha256}"})
        else:
            self._give(handler, content, f'"{git_sha1(content)}"', commit)

    def _by_sum(self, sha256: str) -> bytes:
        every = (content for found in self.repositories.values() for content in found.files.values())
        return next(content for content in every if hashlib.sha256(content).hexdigest() == sha256)

    def _give(
        self, handler: http.server.BaseHTTPRequestHandler, content: bytes, etag: str, more: dict[str, str] | None = None
    ) -> None:
        range_ = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
        start = int(range_[1]) if range_ else 0
        headers = {"ETag": etag, **(more or {}), "Content-Length": str(len(content) - start)}
        if range_:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        _send(handler, 206 if range_ else 200, headers)
        if handler.command == "HEAD":
            return
        body = content[start:]
        if self.cuts and len(etag) == 66:
            body = body[: self.cuts.pop(0)]
        try:
            if not self.gate.is_set():
                handler.wfile.write(body[: self.gate_after])
                handler.wfile.flush()
                self.bytes_sent += len(body[: self.gate_after])
                body = body[self.gate_after :]
                self.gate.wait()
            handler.wfile.write(body)
            self.bytes_sent += len(body)
        except OSError:
            self.hung_up.set()
        handler.close_connection = True


def git_sha1(content: bytes) -> str:
    """The name that Git gives a file's content."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _listing(name: str, found: Repository) -> bytes:
    siblings: list[dict[str, Any]] = []
    for file, content in sorted(found.files.items()):
        facts: dict[str, Any] = {"rfilename": file, "size": len(content), "blobId": git_sha1(content)}
        if file.endswith(LARGE):
            facts["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 132}
        siblings.append(facts)
    told = {"id": name, "modelId": name, "sha": found.commit, "private": False, "siblings": siblings}
    return json.dumps(told | ({"cardData": {"license": found.licence}} if found.licence else {})).encode()


def _summary(name: str, found: Repository) -> dict[str, Any]:
    """What a list has of a repository, with the properties that a search asks for by `expand`."""
    licence = [f"license:{found.licence}"] if found.licence else []
    return {
        "_id": git_sha1(name.encode())[:24],
        "id": name,
        "author": name.partition("/")[0],
        "gated": "manual" if found.gated else False,
        "downloads": found.downloads,
        "likes": 3,
        "lastModified": "2026-11-01T10:20:30.000Z",
        "pipeline_tag": found.task,
        "tags": [*found.tags, *licence],
    }


def _send(handler: http.server.BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if body and handler.command != "HEAD":
        handler.wfile.write(body)


def _serve(hub: HubServer, origin: str) -> tuple[http.server.ThreadingHTTPServer, threading.Thread]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.answer(self, origin)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    return server, thread
