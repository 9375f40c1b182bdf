"""The upload store: names, limits, media types, expiry, and what is left of a broken upload."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.config.settings import load_settings
from backend.common.errors import DiskFull, PayloadTooLarge, TouchstoneError, Validation
from backend.jobs.uploads import CHUNK_BYTES, NAME_LIMIT, Upload, UploadStore, check_name


def store(folder: Path, **flags: Any) -> UploadStore:
    limits = {f"files.{name}": value for name, value in {"keep_free_bytes": 1, **flags}.items()}
    return UploadStore(folder / "files", load_settings(limits, {}).files)


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def send(uploads: UploadStore, *chunks: bytes, name: str = "a.wav", **more: Any) -> Upload:
    return asyncio.run(uploads.receive(name, pieces(*chunks), **more))


def left(uploads: UploadStore) -> list[str]:
    """Return the names of all folders in the store."""
    return sorted(folder.name for folder in uploads.root.iterdir()) if uploads.root.is_dir() else []


@pytest.mark.parametrize("sizes", [[1], [0, 3, 0], [CHUNK_BYTES, 1], [CHUNK_BYTES - 1, 2, CHUNK_BYTES * 2]])
def test_a_file_is_kept_byte_for_byte_however_it_is_cut(tmp_path: Path, sizes: list[int]) -> None:
    chunks = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    uploads = store(tmp_path)
    upload = send(uploads, *chunks)
    content = b"".join(chunks)
    assert (upload.bytes, upload.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    given_to_worker = uploads.resolve_inputs({"audio": upload.id, "numbers": [1, 2]})
    assert Path(given_to_worker["audio"]["path"]).read_bytes() == content and given_to_worker["numbers"] == [1, 2]
    assert given_to_worker["audio"]["name"] == "a.wav" and left(uploads) == [upload.id]
    kept = uploads.file(upload.id)  # naming it in a job made it expire later
    assert kept == replace(upload, expires_at=kept.expires_at) and kept.expires_at >= upload.expires_at


NAMES = ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "\x7f", "x\u202ecod.exe", "\u2066", "x" * (NAME_LIMIT + 1)]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_could_lead_elsewhere_or_mislead_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    uploads = store(tmp_path)
    with pytest.raises(Validation) as caught:
        send(uploads, b"x", name=name)
    assert caught.value.extra["fields"] == ["name"] and left(uploads) == []


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.text("ab./\\\0~ é:*", max_size=8))
def test_a_name_that_is_accepted_is_one_part_of_a_path(name: str) -> None:
    try:
        check_name(name)
    except Validation:
        return
    assert (Path("/files") / name).parent == Path("/files")


TYPES = [
    ("a.wav", "", "audio/wav"),
    ("a.FLAC", "", "audio/flac"),
    ("a.json", "", "application/json"),
    ("a", "", "application/octet-stream"),
    ("a.wav", "application/octet-stream", "audio/wav"),
    ("a.wav", "application/x-www-form-urlencoded", "audio/wav"),
    ("a.wav", "Audio/X-Other; q=1", "audio/x-other"),
    ("a.wav", "nonsense", "audio/wav"),
    ("a.wav", "audio/wav\r\nSet-Cookie: x", "audio/wav"),
]


@pytest.mark.parametrize(("name", "declared", "expected"), TYPES)
def test_the_media_type_is_the_declared_one_unless_it_means_nothing(
    tmp_path: Path, name: str, declared: str, expected: str
) -> None:
    assert send(store(tmp_path), b"x", name=name, media_type=declared).media_type == expected


LIMITS: list[tuple[dict[str, Any], tuple[bytes, ...], int | None, type[TouchstoneError] | None]] = [
    ({"limit_bytes": 4}, (b"12", b"34"), None, None),
    ({"limit_bytes": 4}, (b"12", b"345"), None, PayloadTooLarge),
    ({"limit_bytes": 4}, (b"1",), 5, PayloadTooLarge),
    ({"limit_bytes": 4}, (b"12345",), 1, PayloadTooLarge),
    ({"keep_free_bytes": 10**18}, (b"1",), None, DiskFull),
    ({}, (), None, Validation),
    ({}, (b"", b""), None, Validation),
]


@pytest.mark.parametrize(("flags", "chunks", "declared", "error"), LIMITS)
def test_a_limit_is_kept_and_a_refused_file_leaves_nothing(
    tmp_path: Path,
    flags: dict[str, Any],
    chunks: tuple[bytes, ...],
    declared: int | None,
    error: type[TouchstoneError] | None,
) -> None:
    uploads = store(tmp_path, **flags)
    if error is None:
        assert send(uploads, *chunks, declared_bytes=declared).bytes == 4
        return
    with pytest.raises(error):
        send(uploads, *chunks, declared_bytes=declared)
    assert left(uploads) == []


def test_a_broken_transfer_leaves_nothing_and_its_exception_reaches_the_caller(tmp_path: Path) -> None:
    uploads = store(tmp_path)

    async def breaking() -> AsyncIterator[bytes]:
        yield b"x" * (CHUNK_BYTES + 1)
        raise EOFError

    with pytest.raises(EOFError):
        asyncio.run(uploads.receive("a.wav", breaking()))
    assert left(uploads) == []


def test_a_disk_that_fills_up_during_an_upload_ends_it_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, free = store(tmp_path), iter([10**9, 10**9, CHUNK_BYTES])
    monkeypatch.setattr("backend.jobs.uploads.shutil.disk_usage", lambda _: SimpleNamespace(free=next(free)))
    with pytest.raises(DiskFull):
        send(uploads, b"x" * CHUNK_BYTES, b"y" * CHUNK_BYTES)
    assert left(uploads) == []


def age(uploads: UploadStore, id_: str, hours: float) -> None:
    """Make an upload that many hours older."""
    for file in (uploads.root / id_).iterdir():
        os.utime(file, (0, time.time() - hours * 3600))


def test_an_upload_expires_after_its_last_use_unless_a_job_needs_it(tmp_path: Path) -> None:
    uploads = store(tmp_path, keep_hours=2)
    expired, touched, needed = (send(uploads, b"x").id for _ in range(3))
    for id_ in (expired, touched, needed):
        age(uploads, id_, 3)
    before = uploads.file(touched).expires_at
    assert uploads.touch(touched).expires_at > before
    assert uploads.sweep({needed}) == 1 and left(uploads) == sorted([touched, needed])
    with pytest.raises(Validation, match=expired):
        uploads.file(expired)
    assert uploads.sweep(set(), time.time() + 2 * 3600 + 60) == 2 and left(uploads) == []


def test_remains_of_a_killed_server_are_removed_and_not_counted(tmp_path: Path) -> None:
    uploads = store(tmp_path)
    kept = send(uploads, b"x").id
    (uploads.root / ".coming-abc").mkdir()
    (uploads.root / "stray").mkdir()
    assert uploads.sweep({kept}) == 1, "only a folder without a valid date counts as an upload"
    assert left(uploads) == [kept] and store(tmp_path / "empty").sweep(set()) == 0


@pytest.mark.parametrize("id_", ["", "x", "../secret", "a" * 31, "A" * 32, "a" * 32, f"{'a' * 32}\n"])
def test_an_id_that_the_store_did_not_give_is_unknown(tmp_path: Path, id_: str) -> None:
    uploads = store(tmp_path)
    for call in (uploads.file, uploads.touch):
        with pytest.raises(Validation, match="Unknown file"):
            call(id_)


def test_an_upload_with_damaged_metadata_is_unknown(tmp_path: Path) -> None:
    uploads = store(tmp_path)
    id_ = send(uploads, b"x").id
    for content in ("{", "[]", '{"id": "x"}'):
        (uploads.root / id_ / "facts.json").write_text(content)
        with pytest.raises(Validation):
            uploads.file(id_)


def test_a_program_can_import_a_file_of_this_machine(tmp_path: Path) -> None:
    source = tmp_path / "tune.flac"
    source.write_bytes(b"abc")
    upload = asyncio.run(store(tmp_path).import_file(source))
    assert (upload.name, upload.bytes, upload.media_type) == ("tune.flac", 3, "audio/flac")
    with pytest.raises(OSError, match="missing"):
        asyncio.run(store(tmp_path).import_file(tmp_path / "missing"))
