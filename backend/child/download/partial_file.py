"""The bytes received of a file, kept across broken connections, kills and restarts, with the version they belong to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from backend.child.download.workspace import part_for
from backend.child.progress_report import ProgressReport

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileVersion:
    """Which version of which file the bytes belong to. The fields are the keys of `facts.json`."""

    address: str  # the SHA-256 of the URL, since a URL can hold a secret
    total: int | None  # bytes
    validator: str | None  # a strong ETag or a Last-Modified: what If-Range takes
    sha256: str | None


class PartialFile:
    """A folder with the bytes, under the name of the file, and their version in `facts.json`."""

    def __init__(self, workspace: Path, name: str) -> None:
        self._folder = part_for(workspace, name)
        self.file = self._folder / name
        self._version_file = self._folder / "facts.json"
        self.digest = hashlib.sha256()
        self._hashed_bytes = 0

    @property
    def size(self) -> int:
        """The bytes received so far; 0 if there is no file."""
        try:
            return self.file.stat().st_size
        except FileNotFoundError:
            return 0

    def version(self) -> FileVersion | None:
        """Return the version the bytes belong to, None if there is nothing to resume."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            version = FileVersion(**json.loads(self._version_file.read_text(encoding="utf-8")))
            return version if self.size else None
        return None

    def create(self, version: FileVersion) -> None:
        """Start an empty file. The version is written first: bytes without one are never resumed."""
        self.remove()
        self._folder.mkdir(parents=True)
        temporary = self._version_file.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(version)), encoding="utf-8")
        temporary.replace(self._version_file)
        self.file.touch()
        self.digest, self._hashed_bytes = hashlib.sha256(), 0

    def truncate(self, size: int) -> None:
        """Drop the bytes after `size`."""
        os.truncate(self.file, size)
        self.digest, self._hashed_bytes = hashlib.sha256(), 0

    def hash_existing(self, report: ProgressReport, total: int | None) -> None:
        """Hash the bytes of an earlier run, so that the digest covers the complete file."""
        if self._hashed_bytes == self.size:
            return
        self.digest, self._hashed_bytes = hashlib.sha256(), 0
        with self.file.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                self.digest.update(chunk)
                self._hashed_bytes += len(chunk)
                report.progress("check", self._hashed_bytes, total)

    def open(self) -> BinaryIO:
        """Open the file for appending. Unbuffered: received bytes are kept even if the process is killed."""
        file: Any = self.file.open("ab", buffering=0)
        return file  # type: ignore[no-any-return]

    def append(self, file: BinaryIO, chunk: bytes) -> int:
        """Write and hash a chunk; return the size so far."""
        view = memoryview(chunk)
        while view:
            view = view[file.write(view) :]
        self.digest.update(chunk)
        self._hashed_bytes += len(chunk)
        return self._hashed_bytes

    def remove(self) -> None:
        """Delete the bytes and their version."""
        shutil.rmtree(self._folder, ignore_errors=True)
