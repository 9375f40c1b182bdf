"""The upload store: files that callers send for their jobs, in `<data>/files/ID/`, complete or absent.

An upload expires unless a job needs it. The caller's name of a file is stored as metadata and is never used as a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import mimetypes
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from backend.common.config.settings.schema import Files
from backend.common.errors import DiskFull, PayloadTooLarge, Validation
from backend.common.timestamps import timestamp
from backend.common.types import JsonObject

NAME_LIMIT = 255
CHUNK_BYTES = 1 << 20
_INCOMING, _CONTENT, _METADATA = ".coming-", "content", "facts.json"
_ID = re.compile(r"[0-9a-f]{32}")
MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}")
_DEFAULT_TYPES = ("application/octet-stream", "application/x-www-form-urlencoded")  # which programs send by default
_AUDIO_TYPES = {".wav": "audio/wav", ".flac": "audio/flac"}  # the tables of operating systems differ on these
_UNSAFE = re.compile(
    r"[/\\\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)  # the last range changes the direction of text


@dataclass(frozen=True)
class Upload:
    """A file that a caller sent. It expires at `expires_at`, later if a job needs it or names it meanwhile."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    expires_at: str


class UploadStore:
    """The folder of all uploads."""

    def __init__(self, root: Path, settings: Files) -> None:
        self.root = root
        self._settings = settings
        self._incoming: set[str] = set()

    async def receive(
        self, name: str, content: AsyncIterator[bytes], media_type: str = "", declared_bytes: int | None = None
    ) -> Upload:
        """Write a file as it arrives, and keep it once it is complete.

        `declared_bytes` is the size that the caller announced. Optional.
        Raises Validation for an invalid name and for an empty file, PayloadTooLarge, DiskFull.
        """
        check_name(name)
        self._check_size(declared_bytes or 0)
        id_ = secrets.token_hex(16)
        self._incoming.add(id_)
        try:
            with _translate_os_errors(self.root):
                return await self._write(id_, name, content, media_type, declared_bytes or 0)
        finally:
            self._incoming.discard(id_)
            await asyncio.to_thread(shutil.rmtree, self.root / (_INCOMING + id_), True)

    async def import_file(self, path: Path) -> Upload:
        """Copy a file of this machine. Raises OSError if it cannot be read, and what `receive` raises."""
        size = path.stat().st_size
        with path.open("rb") as file:
            return await self.receive(path.name, read_chunks(file), declared_bytes=size)

    def file(self, id_: str) -> Upload:
        """Return an upload. Raises Validation for an unknown id and for an expired upload."""
        metadata_file = self._folder(id_) / _METADATA if _ID.fullmatch(id_) else None
        try:
            if metadata_file is None:
                raise FileNotFoundError
            metadata: JsonObject = json.loads(metadata_file.read_text(encoding="utf-8"))
            age_s = time.time() - metadata_file.stat().st_mtime
            return Upload(**metadata, expires_at=timestamp(timedelta(seconds=age_s - self._keep_s)))
        except (OSError, ValueError, TypeError):
            raise Validation(
                f"Unknown file {id_[:100]!r}; it may have expired.",
                "Send it with PUT /api/files/NAME and use the id of the response.",
            ) from None

    def touch(self, id_: str) -> Upload:
        """Restart the expiry of an upload that a job names, and return it. Raises Validation."""
        self.file(id_)
        with contextlib.suppress(OSError):
            os.utime(self._folder(id_) / _METADATA)
        return self.file(id_)

    def resolve_inputs(self, inputs: Mapping[str, Any]) -> JsonObject:
        """Return a job's inputs for its worker: `{path, name, media_type}` for an upload. Raises Validation."""
        return {
            name: self._for_worker(self.file(value)) if isinstance(value, str) else value
            for name, value in inputs.items()
        }

    def sweep(self, needed: Collection[str], now_s: float | None = None) -> int:
        """Remove expired uploads except those `needed`, and remains of broken transfers. Return how many uploads.

        `now_s` is the time to compare with. Default: now.
        """
        now_s = time.time() if now_s is None else now_s
        removed = 0
        for folder in list(self.root.iterdir()) if self.root.is_dir() else []:
            name = folder.name
            if name.startswith(_INCOMING):
                has_expired = name.removeprefix(_INCOMING) not in self._incoming
            else:
                has_expired = name not in needed and now_s > _last_used_s(folder) + self._keep_s
            if has_expired:
                shutil.rmtree(folder, ignore_errors=True)
                removed += not name.startswith(_INCOMING)
        return removed

    @property
    def _keep_s(self) -> float:
        return self._settings.keep_hours * 3600

    def _for_worker(self, file: Upload) -> dict[str, str]:
        path = self._folder(file.id) / _CONTENT
        return {"path": str(path.resolve()), "name": file.name, "media_type": file.media_type}

    def _folder(self, id_: str) -> Path:
        return self.root / id_

    async def _write(
        self, id_: str, name: str, content: AsyncIterator[bytes], media_type: str, declared_bytes: int
    ) -> Upload:
        folder = self.root / (_INCOMING + id_)
        await asyncio.to_thread(folder.mkdir, 0o700, parents=True)
        await asyncio.to_thread(self._check_free_space, declared_bytes)
        digest, size = hashlib.sha256(), 0
        with os.fdopen(os.open(folder / _CONTENT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:

            def write(chunk: bytes) -> None:
                self._check_free_space(len(chunk))
                digest.update(chunk)
                out.write(chunk)

            async for chunk in _join_chunks(content):
                size += len(chunk)
                self._check_size(size)
                await asyncio.to_thread(write, chunk)
        if not size:
            raise Validation(f"The file {name!r} is empty.", "Send its content as the body.", fields=["name"])
        metadata = {
            "id": id_,
            "name": name,
            "media_type": _media_type(name, media_type),
            "bytes": size,
            "sha256": digest.hexdigest(),
        }
        return await asyncio.to_thread(self._complete, folder, id_, metadata)

    def _complete(self, folder: Path, id_: str, metadata: Mapping[str, Any]) -> Upload:
        """Write the metadata and move the folder to its final name."""
        (folder / _METADATA).write_text(json.dumps(metadata), encoding="utf-8")
        folder.rename(self._folder(id_))
        return self.file(id_)

    def _check_size(self, size: int) -> None:
        if size > self._settings.limit_bytes:
            raise PayloadTooLarge(
                f"The file is larger than {self._settings.limit_bytes} bytes.",
                "Send a smaller file, or raise files.limit_bytes.",
            )

    def _check_free_space(self, size: int) -> None:
        free, keep_free = shutil.disk_usage(self.root).free, self._settings.keep_free_bytes
        if free - size < keep_free:
            raise DiskFull(
                f"The disk of {self.root} has {free / 1e6:.0f} MB free, {keep_free / 1e6:.0f} MB are reserved.",
                "Free some space there, or lower files.keep_free_bytes.",
            )


def check_name(name: str) -> None:
    """Raises Validation for anything but a plain file name."""
    if not name or name in (".", "..") or len(name) > NAME_LIMIT or _UNSAFE.search(name):
        raise Validation(
            f"{name[:100]!r} is not a file name.",
            f"Use a name without folders and control characters, of at most {NAME_LIMIT} characters.",
            fields=["name"],
        )


@contextlib.contextmanager
def _translate_os_errors(root: Path) -> Iterator[None]:
    """Raise DiskFull for an OSError."""
    try:
        yield
    except OSError as error:
        raise DiskFull(f"The file cannot be written to {root}: {error.strerror}.", "Free some space there.") from error


def _media_type(name: str, declared: str) -> str:
    """Return the declared media type, unless it is a default of programs; then the one of the name's suffix."""
    media_type = declared.partition(";")[0].strip().lower()
    if media_type not in _DEFAULT_TYPES and MEDIA_TYPE.fullmatch(media_type):
        return media_type
    return _AUDIO_TYPES.get(Path(name).suffix.lower()) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def _last_used_s(folder: Path) -> float:
    """Return when the upload arrived or was last named by a job, in seconds since the epoch."""
    try:
        return (folder / _METADATA).stat().st_mtime
    except OSError:
        return 0.0


async def _join_chunks(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield chunks of at least CHUNK_BYTES, so that each is worth a call in a thread."""
    pending = bytearray()
    async for chunk in content:
        pending += chunk
        if len(pending) >= CHUNK_BYTES:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


async def read_chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the content of an open file."""
    while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
        yield chunk
