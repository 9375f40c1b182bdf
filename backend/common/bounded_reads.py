"""Reads of files with a timeout: a dead network mount, a hung driver or a broken disk may never answer.

No thread can be cancelled in such a read, so it runs in a daemon thread, which is left behind. Until it returns, later
reads of the same path fail at once.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

LIMIT_S = 1.0
LATER_LIMIT_S = 0.1  # once a read in the same folder has no answer
LOST_READS = 3  # with so many reads without an answer, every read in the folder fails at once
TEXT_LIMIT = 8 << 20  # enough for /proc/cpuinfo with a thousand threads
_IDLE_THREADS = 4

Result = TypeVar("Result")


class NoAnswer(TimeoutError):
    """A read that did not return within its timeout. An OSError, so it is handled like any file that is unreadable."""

    def __init__(self, path: Path, limit_s: float) -> None:
        super().__init__(errno.ETIMEDOUT, f"no answer within {limit_s:g} s", os.fspath(path))


@dataclass(eq=False)
class _Call:
    read: Callable[[], object]
    ended: threading.Event = field(default_factory=threading.Event)
    result: object = None
    error: BaseException | None = None
    lost: tuple[Path, Path] | None = None  # folder and path, once its caller gave up


class _Reader(threading.Thread):
    """A daemon thread that performs one call after another."""

    def __init__(self) -> None:
        super().__init__(name="bounded-read", daemon=True)
        self.calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        _current.is_reader = True
        while True:
            call = self.calls.get()
            try:
                call.result = call.read()
            except BaseException as error:  # noqa: BLE001 (the caller raises it)
                call.error = error
            with _lock:
                call.ended.set()
                if call.lost:
                    _forget(*call.lost)
                is_kept = len(_idle) < _IDLE_THREADS
                if is_kept:
                    _idle.append(self)
            del call  # its result may be large
            if not is_kept:
                return


_lock = threading.Lock()
_idle: list[_Reader] = []
_lost: dict[Path, set[Path]] = {}  # paths without an answer, by folder
_current = threading.local()


def bounded_read(path: Path, read: Callable[[], Result], limit_s: float = LIMIT_S) -> Result:
    """Return the result of `read`, which reads `path`. Raises NoAnswer after `limit_s`, and what `read` raises.

    If a read of the folder itself has not returned, this one raises NoAnswer at once. A nested read shares the limit
    of the outer one.
    """
    if getattr(_current, "is_reader", False):
        return read()
    folder = path.parent
    with _lock:
        lost = _lost.get(folder, ())
        if path in lost or len(lost) >= LOST_READS or folder in _lost.get(folder.parent, ()):
            raise NoAnswer(path, limit_s)
        if lost:
            limit_s = min(limit_s, LATER_LIMIT_S)
        reader = _idle.pop() if _idle else None
    call = _Call(read)
    (reader or _Reader()).calls.put(call)
    if not call.ended.wait(limit_s):
        with _lock:
            if not call.ended.is_set():
                call.lost = folder, path
                _lost.setdefault(folder, set()).add(path)
                raise NoAnswer(path, limit_s)
    if call.error is not None:
        raise call.error
    return cast(Result, call.result)


def text_of(path: Path) -> str:
    """Return the stripped text of a small file, empty if it cannot be read or does not answer."""
    try:
        return bounded_read(path, lambda: _content(path)).decode("utf-8", "replace").strip(" \t\r\n\0")
    except OSError:
        return ""


def names_in(path: Path) -> list[str]:
    """Return the sorted entries of a folder, empty if it cannot be listed or does not answer."""
    try:
        return bounded_read(path, lambda: sorted(entry.name for entry in path.iterdir()))
    except OSError:
        return []


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(TEXT_LIMIT)


def silent_folder(path: Path, error: NoAnswer) -> tuple[str, str]:
    """Return reason and remedy, in sentences, for a model whose files do not answer."""
    return (
        f"{path} cannot be read: {error.strerror}. Its disk or network mount does not respond.",
        f"Check that `ls {path.parent}` returns, and mount the folder again; or remove it from `model_folders`.",
    )


def paths_without_answer() -> list[Path]:
    """Return the paths whose reads have not returned yet, sorted."""
    with _lock:
        return sorted(path for paths in _lost.values() for path in paths)


def _forget(folder: Path, path: Path) -> None:
    """Remove a path whose read returned after all. Call it with the lock held."""
    paths = _lost.get(folder, set())
    paths.discard(path)
    if not paths:
        _lost.pop(folder, None)
