"""The files that callers send for their jobs: `<data>/files/ID/`, each whole or not there, kept while a job needs it.

A caller's name for a file is a fact beside it and never a path.
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

NAME_LIMIT = 255
PIECE_BYTES = 1 << 20
_COMING, _CONTENT, _FACTS = ".coming-", "content", "facts.json"
_ID = re.compile(r"[0-9a-f]{32}")
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}")
_UNSAID = ("application/octet-stream", "application/x-www-form-urlencoded")  # what programs send by themselves
_KINDS = {".wav": "audio/wav", ".flac": "audio/flac"}  # on which the tables of systems do not agree
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # the last of them turn text around


@dataclass(frozen=True)
class Upload:
    """A file that a caller sent. It goes at `expires_at`, or later if a job needs it or one named it meanwhile."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    expires_at: str


class UploadStore:
    """The folder of all sent files."""

    def __init__(self, root: Path, rules: Files) -> None:
        self.root = root
        self._rules = rules
        self._coming: set[str] = set()

    async def receive(
        self, name: str, content: AsyncIterator[bytes], media_type: str = "", declared_bytes: int | None = None
    ) -> Upload:
        """Writes a file as it comes, and keeps it once it is whole.

        Raises Validation for a name that is none and for an empty file, PayloadTooLarge, DiskFull.
        """
        check_name(name)
        self._check_size(declared_bytes or 0)
        id_ = secrets.token_hex(16)
        self._coming.add(id_)
        try:
            with _told(self.root):
                return await self._written(id_, name, content, media_type, declared_bytes or 0)
        finally:
            self._coming.discard(id_)
            await asyncio.to_thread(shutil.rmtree, self.root / (_COMING + id_), True)

    async def import_file(self, path: Path) -> Upload:
        """Takes a copy of a file of this machine. Raises OSError where it cannot be read, and what `take` raises."""
        size = path.stat().st_size
        with path.open("rb") as file:
            return await self.receive(path.name, pieces(file), declared_bytes=size)

    def file(self, id_: str) -> Upload:
        """What is known of a file. Raises Validation when there is none, or it is gone."""
        facts_file = self._place(id_) / _FACTS if _ID.fullmatch(id_) else None
        try:
            if facts_file is None:
                raise FileNotFoundError
            facts: dict[str, Any] = json.loads(facts_file.read_text(encoding="utf-8"))
            age_s = time.time() - facts_file.stat().st_mtime
            return Upload(**facts, expires_at=timestamp(timedelta(seconds=age_s - self._keep_s)))
        except (OSError, ValueError, TypeError):
            raise Validation(
                f"There is no file {id_[:100]!r}; it may have expired.",
                "Send it with PUT /api/files/NAME and use the id of the answer.",
            ) from None

    def touch(self, id_: str) -> Upload:
        """The same; its time begins anew, since a job names it."""
        self.file(id_)
        with contextlib.suppress(OSError):
            os.utime(self._place(id_) / _FACTS)
        return self.file(id_)

    def resolve_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """A job's inputs as its worker gets them: for a file's id `{path, name, media_type}`. Raises Validation."""
        return {
            name: self._for_worker(self.file(value)) if isinstance(value, str) else value
            for name, value in inputs.items()
        }

    def sweep(self, needed: Collection[str], now_s: float | None = None) -> int:
        """Removes the files whose time is over, but for those `needed`, and what broken transfers left; how many."""
        now_s = time.time() if now_s is None else now_s
        gone = 0
        for folder in list(self.root.iterdir()) if self.root.is_dir() else []:
            name = folder.name
            if name.startswith(_COMING):
                over = name.removeprefix(_COMING) not in self._coming
            else:
                over = name not in needed and now_s > _used_s(folder) + self._keep_s
            if over:
                shutil.rmtree(folder, ignore_errors=True)
                gone += not name.startswith(_COMING)
        return gone

    @property
    def _keep_s(self) -> float:
        return self._rules.keep_hours * 3600

    def _for_worker(self, file: Upload) -> dict[str, str]:
        path = self._place(file.id) / _CONTENT
        return {"path": str(path.resolve()), "name": file.name, "media_type": file.media_type}

    def _place(self, id_: str) -> Path:
        return self.root / id_

    async def _written(
        self, id_: str, name: str, content: AsyncIterator[bytes], media_type: str, declared_bytes: int
    ) -> Upload:
        folder = self.root / (_COMING + id_)
        await asyncio.to_thread(folder.mkdir, 0o700, parents=True)
        self._check_room(declared_bytes)
        digest, size = hashlib.sha256(), 0
        with os.fdopen(os.open(folder / _CONTENT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:

            def write(piece: bytes) -> None:
                self._check_room(len(piece))
                digest.update(piece)
                out.write(piece)

            async for piece in _joined(content):
                size += len(piece)
                self._check_size(size)
                await asyncio.to_thread(write, piece)
        if not size:
            raise Validation(f"The file {name!r} is empty.", "Send its content as the body.", fields=["name"])
        facts = {
            "id": id_,
            "name": name,
            "media_type": _media_type(name, media_type),
            "bytes": size,
            "sha256": digest.hexdigest(),
        }
        (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        folder.rename(self._place(id_))
        return self.file(id_)

    def _check_size(self, size: int) -> None:
        if size > self._rules.limit_bytes:
            raise PayloadTooLarge(
                f"The file is larger than {self._rules.limit_bytes} bytes.", "Send less, or raise files.limit_bytes."
            )

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free - size < self._rules.keep_free_bytes:
            raise DiskFull(
                f"The disk of {self.root} has {free / 1e6:.0f} MB free, and {self._rules.keep_free_bytes / 1e6:.0f} MB "
                "are to stay so.",
                "Free some space there, or lower files.keep_free_bytes.",
            )


def check_name(name: str) -> None:
    """Raises Validation for what is no plain file name."""
    if not name or name in (".", "..") or len(name) > NAME_LIMIT or _UNSAFE.search(name):
        raise Validation(
            f"{name[:100]!r} is no file name.",
            f"Name the file without folders and control characters, in at most {NAME_LIMIT} characters.",
            fields=["name"],
        )


@contextlib.contextmanager
def _told(root: Path) -> Iterator[None]:
    """Turns what the system refuses into words."""
    try:
        yield
    except OSError as error:
        raise DiskFull(f"{root} cannot take the file: {error.strerror}.", "Free some space there.") from error


def _media_type(name: str, said: str) -> str:
    kind = said.partition(";")[0].strip().lower()
    if kind not in _UNSAID and _MEDIA_TYPE.fullmatch(kind):
        return kind
    return _KINDS.get(Path(name).suffix.lower()) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def _used_s(folder: Path) -> float:
    """When the file came or was named last."""
    try:
        return (folder / _FACTS).stat().st_mtime
    except OSError:
        return 0.0


async def _joined(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces of a size that is worth a thread's while."""
    waiting = bytearray()
    async for chunk in content:
        waiting += chunk
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


async def pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    """A file of this machine as it is read."""
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece
