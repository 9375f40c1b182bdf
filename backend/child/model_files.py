"""The files of a loaded model: which they are, and what identifies the content that the worker opened.

A digest must not delay the first token, so only small files are hashed completely. `docs/models.md` states the rule.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from backend.common.errors import TouchstoneError
from backend.common.formats.gguf import parts
from backend.common.formats.onnx.validation import outside_files
from backend.common.types import ModelFile, ModelStamp

CHANGED = "changed_file"  # in `extra` of an error: a file changed during the load, which may succeed if it is repeated
WHOLE_BYTES = 16 * 1024 * 1024  # larger files are sampled
ENDS_BYTES = 4 * 1024 * 1024  # of a sampled file, from its start and from its end
SAMPLES = 128  # at equal distances
SAMPLE_BYTES = 64 * 1024
WHOLE, SAMPLED, LISTED = "sha256:", "sha256-sampled:", "sha256-listed:"
_FILES_LIMIT = 1000  # of a folder; a frame has a limit too
_NO_MODEL = ("__pycache__",)


class OpenedFiles:
    """The files of one model, noted before the load. A thread hashes them while the engine loads them."""

    def __init__(self, model_path: Path, others: Iterable[Path] = ()) -> None:
        """`others` are files outside the model that the worker loads too. Optional."""
        self._root = model_path
        self._files: list[ModelFile] = []
        for path in (*islice(_model_files(model_path), _FILES_LIMIT), *others):
            self._add(path)
        self._hashing = threading.Thread(target=self._hash_all, daemon=True)
        self._hashing.start()

    def find_change(self) -> str | None:
        """Return the path of a file that is not what it was before the load, None if there is none."""
        return next((file.path for file in self._files if not _is_unchanged(file)), None)

    def add_modules_from(self, folder: Path) -> None:
        """Add the Python modules that were imported from a folder, as an adapter's are."""
        known = {file.path for file in self._files}
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path and path not in known and Path(path).is_relative_to(folder) and "site-packages" not in path:
                self._add(Path(path))
        self._hash_all()

    def describe(self, wait_s: float) -> tuple[list[ModelFile], ModelStamp | None]:
        """Return the files and the stamp of the model. A digest that is not ready within `wait_s` is None."""
        self._hashing.join(wait_s)
        files = list(self._files)
        return files, _stamp(self._root, files)

    def _add(self, path: Path) -> None:
        try:
            facts = path.stat()
        except (OSError, ValueError):
            return  # the engine reports a missing file
        if stat.S_ISREG(facts.st_mode):
            self._files.append(_describe(path, facts))

    def _hash_all(self) -> None:
        for number, file in enumerate(self._files):
            if file.digest is None:
                self._files[number] = replace(file, digest=digest_of(file))


def digest_of(expected: ModelFile) -> str | None:
    """Return the digest of a file; None if it cannot be read, or is not the file that is expected there."""
    try:
        with open(expected.path, "rb") as file:  # noqa: PTH123 (the path of a frame)
            if not expected.is_same(os.fstat(file.fileno())):
                return None
            digest = _digest(file, expected.bytes)
            return digest if expected.is_same(os.fstat(file.fileno())) else None
    except (OSError, ValueError):
        return None


def _digest(file: BinaryIO, size: int) -> str:
    if size <= WHOLE_BYTES:
        whole = hashlib.sha256()
        while piece := file.read(1024 * 1024):
            whole.update(piece)
        return WHOLE + whole.hexdigest()
    sampled = hashlib.sha256(size.to_bytes(8, "big"))
    for start, length in _samples(size):
        file.seek(start)
        sampled.update(file.read(length))
    return SAMPLED + sampled.hexdigest()


def _samples(size: int) -> Iterator[tuple[int, int]]:
    yield 0, ENDS_BYTES
    between = size - 2 * ENDS_BYTES - SAMPLE_BYTES
    for number in range(SAMPLES):
        yield ENDS_BYTES + between * number // (SAMPLES - 1), SAMPLE_BYTES
    yield size - ENDS_BYTES, ENDS_BYTES


def _model_files(path: Path) -> Iterator[Path]:
    """Yield the files of a model: of a folder all of them, since any may be read; of a graph also its data."""
    if path.is_dir():
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NO_MODEL)
            yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        return
    if path.suffix.lower() == ".onnx":
        try:
            yield from (path.parent / name for name in outside_files(path))
        except (OSError, ValueError, TouchstoneError):
            pass  # the engine reports what is wrong with the graph
    yield from parts(path)


def _describe(path: Path, facts: os.stat_result) -> ModelFile:
    return ModelFile(
        bytes=facts.st_size,
        modified_at=_time_of(facts.st_mtime),
        path=str(path),
        modified_ns=facts.st_mtime_ns,
        changed_ns=facts.st_ctime_ns,
        inode=facts.st_ino,
        volume=facts.st_dev,
    )


def _time_of(modified_s: float) -> str:
    try:
        then = datetime.fromtimestamp(modified_s, timezone.utc)
    except (OSError, OverflowError, ValueError):  # a broken clock wrote a year that no calendar has
        then = datetime.fromtimestamp(0, timezone.utc)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_unchanged(file: ModelFile) -> bool:
    try:
        return file.is_same(os.stat(file.path))  # noqa: PTH116 (a path as text)
    except OSError:
        return False


def _stamp(root: Path, files: list[ModelFile]) -> ModelStamp | None:
    """Return one stamp for all files: their bytes, the latest change, and a digest of the list of their digests."""
    if not files:
        return None
    digest = files[0].digest
    if len(files) > 1:
        lines = sorted(f"{file.digest}  {_name_of(Path(file.path), root.parent)}\n" for file in files)
        text = "".join(lines).encode("utf-8", "surrogateescape")
        is_complete = all(file.digest for file in files)
        digest = LISTED + hashlib.sha256(text).hexdigest() if is_complete else None
    return ModelStamp(sum(file.bytes for file in files), max(file.modified_at for file in files), digest)


def _name_of(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
