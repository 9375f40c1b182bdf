"""The folders of runtimes: `NAME/VERSION/`, immutable once installed, and `NAME/current`, which names a version.

A version is valid once its manifest exists, which is written after its proofs. The pointer is a file, because not every
user may create links on Windows; it also holds the previous version, so that both change atomically.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from backend.child.download.workspace import sync_folder
from backend.common.files import read_text
from backend.common.types import JsonObject

RUNTIMES = "runtimes"  # in the data folder
MANIFEST = "touchstone.json"
POINTER = "current"
CACHE = ".cache"  # uv's cache, on the same disk, so that environments can use hard links to its files


@dataclass(frozen=True)
class InstalledRuntime:
    """A version that is complete and proved. `speeds` are GFLOP/s by device, measured by the first proofs."""

    version: str
    python: str
    packages: dict[str, str]
    bytes: int
    at: str
    extra: bool = False  # whether the recipe's own index was used
    speeds: dict[str, float | None] = field(default_factory=dict)


class RuntimeStore:
    """The folder `<data>/runtimes`, which belongs to the server that locks the data folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def cache(self) -> Path:
        """The package cache. It is kept, because environments share its disk space by hard links."""
        return self.root / CACHE

    def folder(self, name: str, version: str) -> Path:
        """Return the folder of a version, which may not exist."""
        return self.root / name / version

    def lock_file(self, name: str, version: str) -> Path:
        """Return the lock file that a version is installed from."""
        return self.root / name / f"{version}.lock" / "pylock.toml"

    def current(self, name: str) -> InstalledRuntime | None:
        """Return the version in use. None if there is none."""
        return self.made(name, self._pointer(name).get("current"))

    def pythons(self, names: Iterable[str]) -> dict[str, str]:
        """Return the interpreters of the versions in use, by runtime."""
        current = {name: self.current(name) for name in names}
        return {name: runtime.python for name, runtime in current.items() if runtime}

    def previous(self, name: str) -> InstalledRuntime | None:
        """Return the version before the current one. None if it is gone."""
        return self.made(name, self._pointer(name).get("previous"))

    def made(self, name: str, version: str | None) -> InstalledRuntime | None:
        """Return a complete version. None if it is incomplete or missing."""
        if not version:
            return None
        with contextlib.suppress(OSError, ValueError, TypeError):
            made = InstalledRuntime(**_read(self.folder(name, version) / MANIFEST))
            return made if Path(made.python).is_file() else None
        return None

    def broken(self, name: str) -> bool:
        """Return whether the current version is incomplete or missing."""
        return bool(self._pointer(name).get("current")) and self.current(name) is None

    def clear(self, name: str, version: str) -> Path:
        """Remove the rest of a version; return its folder, which no longer exists."""
        folder = self.folder(name, version)
        _remove(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    def finish(self, name: str, made: InstalledRuntime) -> None:
        """Mark a version as complete and proved."""
        _write(self.folder(name, made.version) / MANIFEST, asdict(made))

    def switch(self, name: str, version: str) -> None:
        """Make a complete version the current one; the current one becomes the previous one."""
        before = self.current(name)
        kept = before.version if before and before.version != version else self._pointer(name).get("previous")
        _write(self.root / name / POINTER, {"current": version, "previous": kept if kept != version else None})

    def remove(self, name: str) -> int:
        """Remove a runtime with all its versions; return the bytes of the versions."""
        freed = sum(made.bytes for made in (self.current(name), self.previous(name)) if made)
        (self.root / name / POINTER).unlink(missing_ok=True)  # first, so that a partly removed runtime is not used
        _remove(self.root / name)
        self.empty_cache()
        return freed

    def empty_cache(self) -> None:
        """Remove the package cache: its files would keep the disk space of removed environments."""
        _remove(self.cache)

    def sweep(self, name: str) -> None:
        """Remove the versions of a runtime that are neither current nor previous, incomplete ones included."""
        pointer = self._pointer(name)
        kept = {pointer.get("current"), pointer.get("previous")}
        for path in (self.root / name).glob("*"):
            if path.is_dir() and path.name.removesuffix(".lock") not in kept:
                _remove(path)
        if not pointer:
            with contextlib.suppress(OSError):
                (self.root / name).rmdir()

    def _pointer(self, name: str) -> JsonObject:
        with contextlib.suppress(OSError, ValueError):
            return _read(self.root / name / POINTER)
        return {}


def _read(file: Path) -> JsonObject:
    """Return a JSON object from a file, parsed again only if the file changed. Raises OSError, ValueError."""
    facts = file.stat()
    return _parsed(file, facts.st_ino, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=128)
def _parsed(file: Path, *_facts: int) -> JsonObject:
    read = json.loads(read_text(file))
    return read if isinstance(read, dict) else {}


def _write(file: Path, content: JsonObject) -> None:
    """Write a file atomically."""
    fresh = file.with_name(file.name + ".new")
    with fresh.open("w", encoding="utf-8") as opened:
        json.dump(content, opened, indent=1)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(file)
    sync_folder(file.parent)


def _remove(folder: Path) -> None:
    """Rename a folder, then remove it: removing thousands of files is not atomic."""
    if not folder.exists():
        return
    doomed = folder.with_name(folder.name + ".gone")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    if sys.platform == "win32":  # an open file keeps the folder there; the next start removes it
        shutil.rmtree(folder, ignore_errors=True)
