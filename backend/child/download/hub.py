"""Download a model from Hugging Face with `huggingface_hub`, into its cache, with its token and offline mode.

The library lists files, checks access and lays out the cache. `fetch_http` downloads the bytes directly into the
cache's `blobs`: so a download resumes after a cancel, a kill or a restart, unlike the library's, and its SHA-256 is
verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from backend.child.download.errors import Refused, disk_full, explain_os, fits
from backend.child.download.http import Order, fetch_http
from backend.child.download.hub_client import HubClient, HubFile, HubOrder, Unreached, is_safe_path
from backend.child.download.hub_errors import corrupt_file, not_cached, other_file
from backend.child.download.hub_file_selection import Choice, choose, expand_pipeline
from backend.child.download.results import HubDownload
from backend.child.download.workspace import NAME, part_for
from backend.child.progress_report import FileProgressReport, ProgressReport
from backend.common.errors import ModelBroken
from backend.common.formats.gguf.kinds import part_names
from backend.common.formats.onnx.validation import outside_files
from backend.common.formats.safetensors import open_checkpoint
from backend.engines import model_formats

_SHA256, _GIT_SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_CHUNK_BYTES = 1 << 20
_FROM_CACHE = " This is the cached model; Hugging Face could not be reached."


def fetch_hub(order: HubOrder, report: ProgressReport) -> HubDownload:
    """Fetch a model into the cache. Raises Refused."""
    try:
        return _HubDownload(order, report, HubClient(order, report)).run()
    except OSError as error:
        raise explain_os(error, Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()) from error


class _HubDownload:
    def __init__(self, order: HubOrder, report: ProgressReport, client: HubClient) -> None:
        self._order, self._report, self._client = order, report, client
        self._downloaded: list[str] = []
        self._missing = ""  # the first file that an incomplete model in the cache lacks

    def run(self) -> HubDownload:
        """Return the complete model, from the cache if the Hub cannot be reached. Raises Refused."""
        if self._client.offline:
            if cached := self._cached_result(""):
                return cached
            raise not_cached(self._client.query, self._client.cache, self._missing)
        try:
            choice, commit, files = self._select_files()
        except Unreached as unreached:
            if cached := self._cached_result(_FROM_CACHE):
                return cached
            raise unreached.refused from None
        try:
            self._fetch_files(files, commit)
            self._fetch_external_data(choice, commit)
        except Unreached as unreached:
            raise unreached.refused from None
        with contextlib.suppress(Refused, Unreached):  # the model is complete; only other programs use the branch
            self._client.place(choice.files[0], self._order.revision)
        return self._result(choice, commit)

    def _select_files(self) -> tuple[Choice, str, list[HubFile]]:
        """Return the choice, its commit and its files. A requested file needs no list of the repository."""
        requested = self._order.asked
        commit, names = self._order.revision, dict[str, "int | None"]()
        if requested and requested.lower().endswith(tuple(each.suffix for each in model_formats() if each.suffix)):
            names = dict.fromkeys(part_names(requested))
        else:
            commit, names = self._client.list_files()
        choice = choose(names, requested, self._order.variant, self._order.repo)
        if choice.lists_components:
            commit, index = self._client.head(choice.files[0], commit)
            self._fetch_files([index], commit)
            choice = self._expand_pipeline(choice, names, self._snapshot(commit))
        heads = [self._client.head(name, commit) for name in choice.files]
        if self._order.sha256 not in (None, heads[0][1].etag):
            raise other_file(self._client.query, choice.files[0], heads[0][1].etag)
        return choice, heads[0][0], [file for _, file in heads]

    def _expand_pipeline(self, choice: Choice, names: Iterable[str], snapshot: Path) -> Choice:
        """Return the choice with all files that the pipeline's index lists. Raises Refused."""
        try:
            index = json.loads((snapshot / choice.files[0]).read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            index = None
        return expand_pipeline(choice, index if isinstance(index, dict) else {}, names, self._order.repo)

    def _fetch_files(self, files: list[HubFile], commit: str) -> None:
        """Download the files that the cache lacks and link them into the snapshot."""
        blobs = self._client.folder / "blobs"
        missing = [file for file in files if not (self._snapshot(commit) / file.name).exists()]
        has_blob = {file: (blobs / file.etag).exists() for file in missing}
        parts = {file: part_for(blobs / NAME, file.etag) / file.etag for file in missing}
        self._check_space(sum((file.size or 0) - _size(parts[file]) for file in missing if not has_blob[file]))
        total = None if any(file.size is None for file in missing) else sum(file.size or 0 for file in missing)
        offset = 0
        for file in missing:
            if not has_blob[file] and (file.size or 0) <= self._client.largest:
                self._transfer(file, blobs / file.etag, commit, FileProgressReport(self._report, offset, total))
            offset += _size(blobs / file.etag)
            if not self._client.place(file.name, commit).is_symlink():  # a system without symbolic links: it was copied
                (blobs / file.etag).unlink(missing_ok=True)
            self._downloaded.append(file.name)

    def _transfer(self, file: HubFile, blob: Path, commit: str, report: ProgressReport) -> None:
        sha256 = file.etag if _SHA256.fullmatch(file.etag) else None
        url, token = self._client.url(file.name, commit), self._client.token
        fetch_http(Order(blob, url, sha256, file.size, file.name, token, self._order.stall_s), report)
        if _GIT_SHA1.fullmatch(file.etag) and _git_sha1(blob) != file.etag:
            blob.unlink()
            raise corrupt_file(self._client.query, file.name)

    def _fetch_external_data(self, choice: Choice, commit: str) -> None:
        """Download the external data files of ONNX graphs, which only the graphs name."""
        for graph in [name for name in choice.files if name.endswith(".onnx")]:
            try:
                external = outside_files(self._snapshot(commit) / graph)
            except ModelBroken as broken:
                raise Refused(broken.code, broken.detail, broken.remedy) from None
            names = [(PurePosixPath(graph).parent / name).as_posix() for name in external if is_safe_path(name)]
            self._fetch_files([self._client.head(name, commit)[1] for name in names], commit)

    def _cached_result(self, note: str) -> HubDownload | None:
        """Return the model in the cache with a note, None if it is not complete."""
        commit = self._client.cached_commit()
        snapshot = self._snapshot(commit or "")
        paths = (path for path in snapshot.rglob("*") if path.is_file()) if commit else ()
        names = {path.relative_to(snapshot).as_posix(): _size(path) for path in paths}
        try:
            choice = choose(names, self._order.asked, self._order.variant, self._order.repo)
            if choice.lists_components:
                choice = self._expand_pipeline(choice, names, snapshot)
            if choice.folder and choice.folder.check:
                choice.folder.check(snapshot / choice.path)
            if choice.kind == "safetensors":
                open_checkpoint(snapshot / choice.path)
        except ModelBroken as broken:
            self._missing = str(broken.extra.get("missing", ""))
            return None
        except Refused:
            return None
        return self._result(choice, str(commit), note)

    def _result(self, choice: Choice, commit: str, note: str = "") -> HubDownload:
        snapshot = self._snapshot(commit)
        return {
            "path": str(snapshot / choice.path),
            "bytes": sum(_size(snapshot / name) for name in choice.files),
            "commit": commit,
            "brought": self._downloaded,
            "said": choice.said + note,
            "licence": self._client.licence,
        }

    def _snapshot(self, commit: str) -> Path:
        return self._client.folder / "snapshots" / commit

    def _check_space(self, needed: int) -> None:
        cache = self._client.cache
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
        if needed and not fits(needed, free):
            raise disk_full(cache, needed, free, "set HF_HOME")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _git_sha1(file: Path) -> str:
    """Return the Git blob hash of a file, which the Hub uses as ETag for small files."""
    digest = hashlib.sha1(f"blob {_size(file)}\0".encode(), usedforsecurity=False)
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
