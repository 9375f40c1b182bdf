"""The folders of runtimes: `NAME/VERSION/`, made once and never changed, and `NAME/current`, which names one.

A version counts once its manifest is there, which is written after its proofs. The pointer is a file and not a link,
which Windows would not let everybody make; it holds the version before as well, so that both change at one moment.
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
from typing import Any

from backend.child.download.workspace import sync_folder

RUNTIMES = "runtimes"  # in the data folder
MANIFEST = "touchstone.json"
POINTER = "current"
CACHE = ".cache"  # uv's, on the same disk, so that its files and those of the environments are one and the same


@dataclass(frozen=True)
class InstalledRuntime:
    """A version that is whole and proved. `speeds` are GFLOP/s by device, as they were proved at first."""

    version: str
    python: str
    packages: dict[str, str]
    bytes: int
    at: str
    extra: bool = False  # whether the recipe's own index was used
    speeds: dict[str, float | None] = field(default_factory=dict)


class RuntimeStore:
    """The folder `<data>/runtimes`, which belongs to the server that holds the data folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def cache(self) -> Path:
        """What was fetched: kept, as it shares its disk space with the environments made from it."""
        return self.root / CACHE

    def folder(self, name: str, version: str) -> Path:
        """Where a version lies, or would."""
        return self.root / name / version

    def lock_file(self, name: str, version: str) -> Path:
        """The lock that a version is made from."""
        return self.root / name / f"{version}.lock" / "pylock.toml"

    def current(self, name: str) -> InstalledRuntime | None:
        """The version in use."""
        return self.made(name, self._pointer(name).get("current"))

    def pythons(self, names: Iterable[str]) -> dict[str, str]:
        """The interpreters of those that are in use, by name."""
        made = {name: self.current(name) for name in names}
        return {name: one.python for name, one in made.items() if one}

    def previous(self, name: str) -> InstalledRuntime | None:
        """The version before it, if it is still here."""
        return self.made(name, self._pointer(name).get("previous"))

    def made(self, name: str, version: str | None) -> InstalledRuntime | None:
        """A version that is whole."""
        if not version:
            return None
        with contextlib.suppress(OSError, ValueError, TypeError):
            made = InstalledRuntime(**_read(self.folder(name, version) / MANIFEST))
            return made if Path(made.python).is_file() else None
        return None

    def broken(self, name: str) -> bool:
        """Whether a pointer names a version that is not whole any more."""
        return bool(self._pointer(name).get("current")) and self.current(name) is None

    def clear(self, name: str, version: str) -> Path:
        """Removes what is left of a version, and gives its folder, which is not there now."""
        folder = self.folder(name, version)
        _remove(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    def finish(self, name: str, made: InstalledRuntime) -> None:
        """Says that a version is whole and proved."""
        _write(self.folder(name, made.version) / MANIFEST, asdict(made))

    def switch(self, name: str, version: str) -> None:
        """Makes a whole version the current one; the one until now becomes the previous one."""
        before = self.current(name)
        kept = before.version if before and before.version != version else self._pointer(name).get("previous")
        _write(self.root / name / POINTER, {"current": version, "previous": kept if kept != version else None})

    def remove(self, name: str) -> int:
        """Removes a runtime with all its versions; returns the bytes of the versions."""
        freed = sum(made.bytes for made in (self.current(name), self.previous(name)) if made)
        (self.root / name / POINTER).unlink(missing_ok=True)  # first, so that half of it counts as nothing
        _remove(self.root / name)
        self.empty_cache()
        return freed

    def empty_cache(self) -> None:
        """Forgets what was fetched: its files would keep the disk space of environments that are gone."""
        _remove(self.cache)

    def sweep(self, name: str) -> None:
        """Removes the versions of a runtime that are neither current nor previous, half made ones too."""
        pointer = self._pointer(name)
        kept = {pointer.get("current"), pointer.get("previous")}
        for path in (self.root / name).glob("*"):
            if path.is_dir() and path.name.removesuffix(".lock") not in kept:
                _remove(path)
        if not pointer:
            with contextlib.suppress(OSError):
                (self.root / name).rmdir()

    def _pointer(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return _read(self.root / name / POINTER)
        return {}


def _read(file: Path) -> dict[str, Any]:
    """An object in a file, parsed anew only when the file is another. Raises OSError, ValueError."""
    facts = file.stat()
    return _parsed(file, facts.st_ino, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=128)
def _parsed(file: Path, *_facts: int) -> dict[str, Any]:
    read = json.loads(file.read_text(encoding="utf-8"))
    return read if isinstance(read, dict) else {}


def _write(file: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    fresh = file.with_name(file.name + ".new")
    with fresh.open("w", encoding="utf-8") as opened:
        json.dump(content, opened, indent=1)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(file)
    sync_folder(file.parent)


def _remove(folder: Path) -> None:
    """Renamed first: removing thousands of files is not one step, and half an environment must not look whole."""
    if not folder.exists():
        return
    doomed = folder.with_name(folder.name + ".gone")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    if sys.platform == "win32":  # an open file there keeps the folder; the next start sweeps it
        shutil.rmtree(folder, ignore_errors=True)
