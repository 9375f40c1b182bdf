"""PUT /api/files: uploads are stored completely with their file name, and deleted when no job needs them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from backend.common.config.settings import load_settings
from backend.common.config.settings.schema import Files
from backend.common.errors import DiskFull, PayloadTooLarge, Validation
from backend.jobs.job_request import JobRequest
from backend.jobs.uploads import UploadStore
from backend.manager import ModelManager
from backend.manager.background import named_files
from tests.refusals import refused
from tests.service import Server, start_server, wait_for

CONTENT = bytes(range(256)) * 10_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes files of three megabytes and waits for a second."""
    environ = {"TOUCHSTONE_FILES__LIMIT_BYTES": "3MB", "TOUCHSTONE_SERVER__REQUEST_S": "1"}
    server = start_server(tmp_path_factory.mktemp("files") / "data", environ=environ)
    yield server
    assert server.stop() == 0


def kept(server: Server) -> list[str]:
    folder = server.data_dir / "files"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def connected(server: Server) -> socket.socket:
    return socket.create_connection((server.http.base_url.host, server.http.base_url.port or 80), 10)


@pytest.mark.parametrize(
    ("name", "said", "media_type"),
    [
        ("take one.wav", None, "audio/wav"),
        ("tämä 🎵.npy", "application/x-www-form-urlencoded", "application/octet-stream"),
        ("x.bin", "Audio/FLAC; q=1", "audio/flac"),
        ("picture.png", "no type", "image/png"),
        ("CON", None, "application/octet-stream"),
        ("-rf *", None, "application/octet-stream"),
    ],
)
def test_a_file_is_kept_as_it_was_sent(small: Server, name: str, said: str | None, media_type: str) -> None:
    headers = {"Content-Type": said} if said else {}
    answer = small.http.put(f"/api/files/{quote(name)}", content=CONTENT, headers=headers)
    assert answer.status_code == 200, answer.text
    file = answer.json()
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert {key: file[key] for key in ("name", "bytes", "sha256")} == {
        "name": name,
        "bytes": len(CONTENT),
        "sha256": digest,
    }
    assert file["media_type"] == media_type
    content = small.data_dir / "files" / file["id"] / "content"
    assert content.read_bytes() == CONTENT
    assert content.stat().st_mode & 0o077 == 0


def test_a_body_of_unknown_length_is_taken(small: Server) -> None:
    chunks = iter([b"one", b"two"])
    file = small.http.put("/api/files/x", content=chunks).json()
    assert (file["bytes"], file["sha256"]) == (6, hashlib.sha256(b"onetwo").hexdigest())


@pytest.mark.parametrize(
    "name",
    ["..", ".", "a%2Fb", "..%2F..%2Fetc%2Fpasswd", "a%5Cb", "a%00b", "a%0Ab", "a%E2%80%AEgnp.exe", "x" * 256, ""],
)
def test_what_is_no_file_name_is_refused(small: Server, name: str) -> None:
    before, rest = kept(small), "Content-Length: 1\r\nConnection: close\r\n\r\nx"
    with connected(small) as line:
        line.sendall(f"PUT /api/files/{name} HTTP/1.1\r\nHost: localhost\r\n{rest}".encode())
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert answer.splitlines()[0].split()[1] in (b"404", b"422") and b"remedy" in answer
    assert kept(small) == before


def test_an_empty_file_is_refused(small: Server) -> None:
    refused(small.http.put("/api/files/x.wav", content=b""), 422, "validation_error")


@pytest.mark.parametrize("declared", [True, False])
def test_a_file_that_is_too_large_is_refused_and_leaves_nothing(small: Server, declared: bool) -> None:
    before, body = kept(small), bytes(4_000_000)
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    answer = small.http.put("/api/files/x.wav", content=body if declared else pieces)
    refused(answer, 413, "payload_too_large")
    assert "files.limit_bytes" in answer.json()["remedy"]
    assert kept(small) == before


def test_a_foreign_page_may_send_no_file(small: Server) -> None:
    answer = small.http.put("/api/files/x", content=b"x", headers={"Origin": "https://evil.example"})
    refused(answer, 403, "forbidden_origin")


def test_a_body_that_stops_coming_is_given_up(small: Server) -> None:
    before = kept(small)
    with connected(small) as line:
        line.sendall(b"PUT /api/files/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert b" 400 " in answer.splitlines()[0] and b"timed out after 1 s" in answer
    assert kept(small) == before


def test_a_body_that_trickles_is_given_up(small: Server) -> None:
    before, answer = kept(small), b""
    with connected(small) as line:
        line.sendall(b"PUT /api/files/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        line.settimeout(0.3)
        while not answer:
            with contextlib.suppress(TimeoutError):
                line.sendall(b"x")
                answer = line.recv(65536)
        with contextlib.suppress(ConnectionError):
            answer += b"".join(iter(lambda: line.recv(65536), b""))
    assert b" 400 " in answer.splitlines()[0] and b"slower than 1000 bytes per second" in answer, answer
    assert kept(small) == before


def test_a_caller_that_leaves_midway_leaves_nothing(small: Server) -> None:
    before = kept(small)
    with connected(small) as line:
        line.sendall(b"PUT /api/files/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        wait_for(lambda: len(kept(small)) > len(before))
    wait_for(lambda: kept(small) == before)
    assert "Traceback" not in small.log.read_text()


def test_a_job_that_takes_no_files_says_so(server: Server) -> None:
    answer = server.http.post("/api/generate", json={"prompt": "x", "inputs": {"audio": "0" * 32}})
    refused(answer, 422, "validation_error")


async def sent(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def inbox(tmp_path: Path, **rules: int) -> UploadStore:
    return UploadStore(tmp_path / "files", Files(**{"keep_free_bytes": 1, **rules}))


def test_an_unknown_or_hostile_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files" / "x").mkdir(parents=True)
    for id_ in ("0" * 32, "x", "..", "../files/x", "", "a\0b"):
        with pytest.raises(Validation, match="Unknown file"):
            inbox(tmp_path).file(id_)


def test_a_file_goes_when_its_time_is_over_unless_it_is_needed(tmp_path: Path) -> None:
    box = inbox(tmp_path, keep_hours=1)
    old, needed, renewed = (asyncio.run(box.receive("x", sent(b"x"))).id for _ in range(3))
    for id_ in (old, needed, renewed):
        os.utime(box.root / id_ / "facts.json", (0, 0))
    box.touch(renewed)
    (box.root / (".coming-" + "0" * 32)).mkdir()
    assert box.sweep({needed}) == 1
    assert sorted(path.name for path in box.root.iterdir()) == sorted([needed, renewed])
    assert box.sweep(set(), time.time() + 3601) == 2


def test_files_are_needed_by_the_jobs_that_have_not_ended() -> None:
    def job(active: bool, inputs: Any) -> Any:
        request = JobRequest("onnx", "m", inputs=inputs or {})
        return SimpleNamespace(active=active, input_files=request.input_files)

    jobs = [job(True, {"audio": "a", "x": [1.0]}), job(False, {"audio": "b"}), job(True, None), job(True, {"y": "c"})]
    assert named_files(jobs) == {"a", "c"}


def test_a_file_that_is_still_coming_is_not_swept(tmp_path: Path) -> None:
    box = inbox(tmp_path)

    async def slowly() -> AsyncIterator[bytes]:
        yield bytes(2 << 20)
        assert box.sweep(set()) == 0
        yield b"end"

    assert asyncio.run(box.receive("x", slowly())).bytes == (2 << 20) + 3


def test_the_disk_keeps_its_room(tmp_path: Path) -> None:
    box = inbox(tmp_path, keep_free_bytes=2**60)
    with pytest.raises(DiskFull, match="are reserved"):
        asyncio.run(box.receive("x", sent(b"x")))
    assert list(box.root.iterdir()) == []


def test_a_declared_size_is_believed_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PayloadTooLarge):
        asyncio.run(inbox(tmp_path, limit_bytes=5).receive("x", sent(), declared_bytes=6))
    assert not (tmp_path / "files").exists()


def test_python_programs_add_files_as_well(tmp_path: Path) -> None:
    (tmp_path / "mix.wav").write_bytes(b"RIFF")
    with ModelManager(load_settings({"storage.data_dir": tmp_path / "data"}, {}, tmp_path)) as manager:
        file = manager.uploads.file(manager.add_file(tmp_path / "mix.wav"))
        assert (file.name, file.bytes) == ("mix.wav", 4)
        assert Path(manager.uploads.resolve_inputs({"audio": file.id})["audio"]["path"]).read_bytes() == b"RIFF"
