"""What has come of a file so far, kept over broken lines, kills and restarts, with what proves it the same."""

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
class Facts:
    """Which version of which file the part is of."""

    address: str  # a hash of it, since an address can hold a secret
    total: int | None
    validator: str | None  # a strong ETag or a Last-Modified: what If-Range takes
    sha256: str | None


class Part:
    """A folder with the bytes under the file's own name and the facts beside them."""

    def __init__(self, workspace: Path, name: str) -> None:
        self._folder = part_for(workspace, name)
        self.file = self._folder / name
        self._note = self._folder / "facts.json"
        self.digest = hashlib.sha256()
        self._hashed = 0

    @property
    def size(self) -> int:
        """Bytes that have come."""
        try:
            return self.file.stat().st_size
        except FileNotFoundError:
            return 0

    def facts(self) -> Facts | None:
        """What the bytes are of; None if there is nothing to go on with."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            facts = Facts(**json.loads(self._note.read_text(encoding="utf-8")))
            return facts if self.size else None
        return None

    def begin(self, facts: Facts) -> None:
        """Forgets what came before. The note is written first: bytes without their facts are never gone on with."""
        self.remove()
        self._folder.mkdir(parents=True)
        fresh = self._note.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(facts)), encoding="utf-8")
        fresh.replace(self._note)
        self.file.touch()
        self.digest, self._hashed = hashlib.sha256(), 0

    def cut(self, size: int) -> None:
        """Drops bytes at the end."""
        os.truncate(self.file, size)
        self.digest, self._hashed = hashlib.sha256(), 0

    def catch_up(self, report: ProgressReport, total: int | None) -> None:
        """Reads what another run has left, so that the digest covers it."""
        if self._hashed == self.size:
            return
        self.digest, self._hashed = hashlib.sha256(), 0
        with self.file.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                self.digest.update(chunk)
                self._hashed += len(chunk)
                report.progress("check", self._hashed, total)

    def open(self) -> BinaryIO:
        """The file, to be added to. Unbuffered: what was received is there even if the process is killed."""
        file: Any = self.file.open("ab", buffering=0)
        return file  # type: ignore[no-any-return]

    def add(self, file: BinaryIO, chunk: bytes) -> int:
        """Writes and hashes; returns how much there is."""
        view = memoryview(chunk)
        while view:
            view = view[file.write(view) :]
        self.digest.update(chunk)
        self._hashed += len(chunk)
        return self._hashed

    def remove(self) -> None:
        """Nothing is left of it."""
        shutil.rmtree(self._folder, ignore_errors=True)
