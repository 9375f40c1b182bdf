"""A model from Hugging Face, by `huggingface_hub` and its conventions: its cache, its token, its offline mode.

The library says what there is, who may have it and where it belongs. The bytes come by `fetch_http`, straight into the
cache's `blobs`: that way a download goes on after a cancel, a kill or a restart, which the library's own does not, and
is checked by its SHA-256.
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
from typing import Any

from backend.child.download.errors import Refused, disk_full, explain_os
from backend.child.download.http import Order, fetch_http
from backend.child.download.hub_client import HubFile, HubOrder, Library, Unreached, is_plain
from backend.child.download.hub_errors import corrupt_file, not_cached
from backend.child.download.hub_file_selection import Choice, choose, of_pipeline
from backend.child.download.workspace import NAME, part_for
from backend.child.progress_report import ProgressReport, Share
from backend.common.errors import ModelBroken
from backend.common.formats.gguf.kinds import part_names
from backend.common.formats.onnx.validation import outside_files
from backend.common.formats.safetensors import open_checkpoint
from backend.engines import model_formats

_SHA256, _GIT_SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_CHUNK_BYTES = 1 << 20
_CACHED = " This is what the cache holds; Hugging Face was not reached."


def fetch_hub(order: HubOrder, report: ProgressReport) -> dict[str, Any]:
    """Fetches a model into the cache: `{path, bytes, commit, brought, said, licence}`. Raises Refused."""
    try:
        return _Fetch(order, report, Library(order, report)).run()
    except OSError as error:
        raise explain_os(error, Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()) from error


class _Fetch:
    def __init__(self, order: HubOrder, report: ProgressReport, library: Library) -> None:
        self._order, self._report, self._library = order, report, library
        self._brought: list[str] = []
        self._lacking = ""  # what the cache has not of a model of which it has a part

    def run(self) -> dict[str, Any]:
        """The model, whole."""
        if self._library.offline:
            if kept := self._kept(""):
                return kept
            raise not_cached(self._library.query, self._library.cache, self._lacking)
        try:
            choice, commit, files = self._plan()
        except Unreached as unreached:
            if kept := self._kept(_CACHED):
                return kept
            raise unreached.refused from None
        try:
            self._bring(files, commit)
            self._bring_outside(choice, commit)
        except Unreached as unreached:
            raise unreached.refused from None
        with contextlib.suppress(Refused, Unreached):  # all is here; only other programs go by the branch
            self._library.place(choice.files[0], self._order.revision)
        return self._result(choice, commit)

    def _plan(self) -> tuple[Choice, str, list[HubFile]]:
        """What to fetch. A file that was named needs no list of what there is."""
        asked = self._order.asked
        commit, names = self._order.revision, dict[str, "int | None"]()
        if asked and asked.lower().endswith(tuple(each.suffix for each in model_formats() if each.suffix)):
            names = dict.fromkeys(part_names(asked))
        else:
            commit, names = self._library.listed()
        choice = choose(names, asked, self._order.variant, self._order.repo)
        if choice.lists_components:
            commit, index = self._library.head(choice.files[0], commit)
            self._bring([index], commit)
            choice = self._whole(choice, names, self._snapshot(commit))
        found = [self._library.head(name, commit) for name in choice.files]
        return choice, found[0][0], [file for _, file in found]

    def _whole(self, choice: Choice, names: Iterable[str], snapshot: Path) -> Choice:
        """A pipeline with all its files, as its table of contents tells them. Raises Refused."""
        try:
            index = json.loads((snapshot / choice.files[0]).read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            index = None
        return of_pipeline(choice, index if isinstance(index, dict) else {}, names, self._order.repo)

    def _bring(self, files: list[HubFile], commit: str) -> None:
        """Fetches what the cache lacks and gives it its place there."""
        blobs = self._library.folder / "blobs"
        missing = [file for file in files if not (self._snapshot(commit) / file.name).exists()]
        here = {file: (blobs / file.etag).exists() for file in missing}
        parts = {file: part_for(blobs / NAME, file.etag) / file.etag for file in missing}
        self._check_space(sum((file.size or 0) - _size(parts[file]) for file in missing if not here[file]))
        total = None if any(file.size is None for file in missing) else sum(file.size or 0 for file in missing)
        before = 0
        for file in missing:
            if not here[file] and (file.size or 0) <= self._library.largest:
                self._transfer(file, blobs / file.etag, commit, Share(self._report, before, total))
            before += _size(blobs / file.etag)
            if not self._library.place(file.name, commit).is_symlink():  # a system without links: it was copied
                (blobs / file.etag).unlink(missing_ok=True)
            self._brought.append(file.name)

    def _transfer(self, file: HubFile, blob: Path, commit: str, report: ProgressReport) -> None:
        sha256 = file.etag if _SHA256.fullmatch(file.etag) else None
        url, token = self._library.address(file.name, commit), self._library.token
        fetch_http(Order(blob, url, sha256, file.size, file.name, token, self._order.stall_s), report)
        if _GIT_SHA1.fullmatch(file.etag) and _git_sha1(blob) != file.etag:
            blob.unlink()
            raise corrupt_file(self._library.query, file.name)

    def _bring_outside(self, choice: Choice, commit: str) -> None:
        """The files that hold a graph's weights beside it, where the names did not tell them."""
        for graph in [name for name in choice.files if name.endswith(".onnx")]:
            try:
                beside = outside_files(self._snapshot(commit) / graph)
            except ModelBroken as broken:
                raise Refused(broken.code, broken.detail, broken.remedy) from None
            names = [(PurePosixPath(graph).parent / name).as_posix() for name in beside if is_plain(name)]
            self._bring([self._library.head(name, commit)[1] for name in names], commit)

    def _kept(self, note: str) -> dict[str, Any] | None:
        """The model as the cache holds it, None if it does not."""
        commit = self._library.kept_commit()
        snapshot = self._snapshot(commit or "")
        found = (path for path in snapshot.rglob("*") if path.is_file()) if commit else ()
        names = {path.relative_to(snapshot).as_posix(): _size(path) for path in found}
        try:
            choice = choose(names, self._order.asked, self._order.variant, self._order.repo)
            if choice.lists_components:
                choice = self._whole(choice, names, snapshot)
            if choice.folder and choice.folder.check:
                choice.folder.check(snapshot / choice.path)
            if choice.kind == "safetensors":
                open_checkpoint(snapshot / choice.path)
        except ModelBroken as broken:
            self._lacking = str(broken.extra.get("missing", ""))
            return None
        except Refused:
            return None
        return self._result(choice, str(commit), note)

    def _result(self, choice: Choice, commit: str, note: str = "") -> dict[str, Any]:
        snapshot = self._snapshot(commit)
        return {
            "path": str(snapshot / choice.path),
            "bytes": sum(_size(snapshot / name) for name in choice.files),
            "commit": commit,
            "brought": self._brought,
            "said": choice.said + note,
            "licence": self._library.licence,
        }

    def _snapshot(self, commit: str) -> Path:
        return self._library.folder / "snapshots" / commit

    def _check_space(self, needed: int) -> None:
        cache = self._library.cache
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
        if needed > free:
            raise disk_full(cache, needed, free, "set HF_HOME")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _git_sha1(file: Path) -> str:
    """The checksum that Git, and with it the repository, gives a file that is not large."""
    digest = hashlib.sha1(f"blob {_size(file)}\0".encode(), usedforsecurity=False)
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
