"""Stamps of model files: what changes when a file is replaced, so that lists do not read all headers again."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from backend.common.bounded_reads import NoAnswer, bounded_read
from backend.common.formats.gguf.kinds import SPLIT

Stamp = tuple[int, ...]
ABSENT: Stamp = ()


def stamps_of(paths: Iterable[Path], limit_s: float) -> dict[Path, Stamp]:
    """Return the stamp of each path, with one read for each folder: ABSENT if nothing is there.

    Without a stamp are folders, parts of split models, and what does not answer: their content may change unnoticed.
    """
    by_folder: dict[Path, list[Path]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, []).append(path)
    stamps: dict[Path, Stamp] = {}
    for folder, inside in by_folder.items():
        with contextlib.suppress(NoAnswer):
            stamps |= bounded_read(folder, partial(_read, inside), limit_s)
    return stamps


def _read(paths: list[Path]) -> dict[Path, Stamp]:
    return dict(_stamps(paths))


def _stamps(paths: list[Path]) -> Iterator[tuple[Path, Stamp]]:
    for path in paths:
        try:
            facts = path.stat()
        except FileNotFoundError:
            yield path, ABSENT
        except (OSError, ValueError):
            continue
        else:
            if stat.S_ISREG(facts.st_mode) and not SPLIT.fullmatch(path.name):
                yield path, (facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_dev)
