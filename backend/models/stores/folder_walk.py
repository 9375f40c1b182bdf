"""Walk the folders below a model folder: to a bounded depth and number of entries, and never twice through a link."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MOST_ENTRIES = 20_000  # of one model folder with all folders below it


@dataclass
class FolderWalk:
    """The files and model folders found, sorted in each folder, and what was left out with its reason."""

    found: list[Path] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def walk(
    root: Path,
    is_model_folder: Callable[[Path], bool],
    depth: int,
    is_left_out: Callable[[Path], bool] = lambda folder: False,
    most_entries: int = MOST_ENTRIES,
    limit_s: float = 60.0,
) -> FolderWalk:
    """Return the files and the model folders below `root`. Hidden entries are left out. Raises OSError for `root`.

    A model folder is not searched; neither is a folder that `is_left_out`. `depth`: levels of folders below `root`.
    """
    result = FolderWalk()
    seen = {_identity(root)}
    pending = [(root, sorted(os.scandir(root), key=lambda entry: entry.name), depth)]
    entries, until_s = 0, time.monotonic() + limit_s
    while pending:
        folder, content, levels = pending.pop(0)
        if time.monotonic() > until_s:
            result.skipped.append((folder, f"the search took more than {limit_s:g} s"))
            return result
        for entry in content:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            entries += 1
            if entries > most_entries:
                result.skipped.append((folder, f"more than {most_entries} entries: the rest is not searched"))
                return result
            if not _is_folder(entry):
                result.found.append(path)
            elif not is_left_out(path):
                pending += _enter(path, levels, seen, is_model_folder, result)
    return result


def _enter(
    path: Path,
    levels: int,
    seen: set[tuple[int, int]],
    is_model_folder: Callable[[Path], bool],
    result: FolderWalk,
) -> list[tuple[Path, list[os.DirEntry[str]], int]]:
    """Note a model folder, or return a folder to search with its content."""
    try:
        if is_model_folder(path):
            result.found.append(path)
            return []
        identity = _identity(path)
        if identity in seen:
            result.skipped.append((path, "a link to a folder that is searched already"))
            return []
        if levels == 0:
            result.skipped.append((path, "too many levels of folders"))
            return []
        seen.add(identity)
        return [(path, sorted(os.scandir(path), key=lambda entry: entry.name), levels - 1)]
    except OSError as error:
        result.skipped.append((path, f"it cannot be read: {error.strerror}"))
        return []


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
