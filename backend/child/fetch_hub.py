"""A model from Hugging Face, by `huggingface_hub` and its conventions: its cache, its token, its offline mode.

The library says what there is, who may have it and where it belongs. The bytes come by `fetch_http`, straight into the
cache's `blobs`: that way a download goes on after a cancel, a kill or a restart, which the library's own does not, and
is checked by its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from backend import __version__
from backend.child.fetch_errors import Refused, disk_full, explain_os
from backend.child.fetch_http import FIRST_TRIES, WAIT_S, Order, fetch_http
from backend.child.fetch_net import trusted
from backend.child.hub_choice import Choice, choose
from backend.child.hub_errors import Asked, damaged, explain, is_passing, not_kept, odd_endpoint
from backend.child.report import Report, Share
from backend.child.workspace import NAME, part_for
from backend.errors import ModelBroken
from backend.gguf.kinds import part_names
from backend.onnxfile import outside_files

_SAFE = re.compile(r"(?!\.+$)[\w.-]{1,128}", re.ASCII)  # what may be a file's name in the cache
_SHA256, _GIT_SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_CHUNK_BYTES = 1 << 20
Result = TypeVar("Result")


@dataclass(frozen=True)
class HubOrder:
    """What is wanted. `variables` are the user's own, by which the library is set up."""

    repo: str
    revision: str = "main"
    asked: str | None = None
    variant: str | None = None
    stall_s: float = 30.0
    variables: Mapping[str, str] | None = None


@dataclass(frozen=True)
class _File:
    """A file of the repository: `etag` is its name among the blobs."""

    name: str
    size: int | None
    etag: str


def fetch_hub(order: HubOrder, report: Report) -> dict[str, Any]:
    """Fetches a model into the cache: `{path, bytes, commit, brought, said, licence}`. Raises Refused."""
    os.environ.pop("HF_HUB_OFFLINE", None)  # which every child has, so that no engine asks the network
    os.environ.update(order.variables or {})
    os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_VERBOSITY="error")
    try:
        return _Hub(order, report).fetch()
    except OSError as error:
        raise explain_os(error, Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()) from error


class _Hub:
    """One order. The library is imported here, after its variables are set."""

    def __init__(self, order: HubOrder, report: Report) -> None:
        import httpx2
        from huggingface_hub import HfApi, constants, get_token, set_client_factory
        from huggingface_hub.file_download import repo_folder_name
        from huggingface_hub.utils._http import hf_request_event_hook

        context = trusted()
        hooks: Any = {"request": [hf_request_event_hook]}
        set_client_factory(
            lambda: httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=None, verify=context)
        )
        self._order, self._report = order, report
        self._offline = constants.is_offline_mode()
        self._cache = Path(constants.HF_HUB_CACHE)
        self._folder = self._cache / repo_folder_name(repo_id=order.repo, repo_type="model")
        self._token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        self._asked = Asked(order.repo, order.revision, order.asked, constants.ENDPOINT, bool(self._token))
        self._api = HfApi(library_name="touchstone", library_version=__version__)
        self._brought: list[str] = []
        self._licence: str | None = None

    def fetch(self) -> dict[str, Any]:
        """Whole, or Refused."""
        if self._offline:
            return self._kept("") or self._refuse(not_kept(self._asked, self._cache))
        try:
            choice, commit, files = self._plan()
        except _Unreached as unreached:
            return self._kept(" This is what the cache holds; Hugging Face was not reached.") or self._refuse(
                unreached.refused
            )
        self._bring(files, commit)
        snapshot = self._folder / "snapshots" / commit
        if choice.kind in ("onnx", "onnx-genai"):
            self._bring_outside(choice, commit, snapshot)
        self._file(choice.files[0], self._order.revision)  # so that the branch is known in the cache as well
        return self._result(choice, commit, snapshot)

    def _plan(self) -> tuple[Choice, str, list[_File]]:
        """What to fetch. Raises Refused, _Unreached."""
        commit, names = self._listed()
        choice = choose(names, self._order.asked, self._order.variant, self._order.repo)
        found = [self._head(name, commit or self._order.revision) for name in choice.files]
        return choice, commit or found[0][0], [file for _, file in found]

    def _listed(self) -> tuple[str | None, dict[str, int | None]]:
        """The commit and the files with their sizes; a file that was named needs no list."""
        asked = self._order.asked
        if asked and asked.lower().endswith((".gguf", ".onnx")):
            return None, dict.fromkeys(part_names(asked))
        info = self._ask(
            lambda: self._api.model_info(
                self._order.repo, revision=self._order.revision, files_metadata=True, timeout=self._order.stall_s
            )
        )
        commit = str(info.sha)
        self._licence = _text(getattr(info.card_data, "license", None))
        if not _SAFE.fullmatch(commit):
            raise odd_endpoint(self._asked)
        return commit, {one.rfilename: one.size for one in info.siblings or [] if _plain(one.rfilename)}

    def _head(self, name: str, revision: str) -> tuple[str, _File]:
        """The commit and the facts of one file."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(self._order.repo, name, revision=revision)
        said = self._ask(lambda: get_hf_file_metadata(url, timeout=self._order.stall_s, token=self._token))
        if not _SAFE.fullmatch(said.commit_hash or "") or not _SAFE.fullmatch(said.etag or ""):
            raise odd_endpoint(self._asked)
        return str(said.commit_hash), _File(name, said.size, str(said.etag))

    def _bring(self, files: list[_File], commit: str) -> None:
        """Fetches what the cache lacks and gives it its place there."""
        missing = [file for file in files if not self._has(file.name, commit)]
        blobs = self._folder / "blobs"
        kept = {file: part_for(blobs / NAME, file.etag) / file.etag for file in missing}
        here = {file: (blobs / file.etag).exists() for file in missing}
        needed = sum((file.size or 0) - _size(kept[file]) for file in missing if not here[file])
        self._check_space(needed)
        total = None if any(file.size is None for file in missing) else sum(file.size or 0 for file in missing)
        before = 0
        for file in missing:
            if not here[file]:
                self._transfer(file, blobs / file.etag, commit, Share(self._report, before, total))
            before += _size(blobs / file.etag)
            self._file(file.name, commit)
            self._brought.append(file.name)

    def _transfer(self, file: _File, blob: Path, commit: str, report: Report) -> None:
        from huggingface_hub import constants, hf_hub_url

        if (file.size or 0) > constants.MAX_HTTP_DOWNLOAD_SIZE:
            return  # larger ones are given out through the library's own Xet alone: `_file` fetches it
        sha256 = file.etag if _SHA256.fullmatch(file.etag) else None
        url = hf_hub_url(self._order.repo, file.name, revision=commit)
        fetch_http(Order(blob, url, sha256, file.size, file.name, self._token, self._order.stall_s), report)
        if _GIT_SHA1.fullmatch(file.etag) and _git_sha1(blob) != file.etag:
            blob.unlink()
            raise damaged(self._asked, file.name)

    def _bring_outside(self, choice: Choice, commit: str, snapshot: Path) -> None:
        """The files that hold a graph's weights beside it, where the names did not tell them."""
        for graph in [name for name in choice.files if name.endswith(".onnx")]:
            folder = PurePosixPath(graph).parent
            try:
                names = [(folder / name).as_posix() for name in outside_files(snapshot / graph)]
            except ModelBroken as broken:
                raise Refused(broken.code, broken.detail, broken.remedy) from None
            self._bring([self._head(name, commit)[1] for name in names if _plain(name)], commit)

    def _file(self, name: str, revision: str) -> None:
        """Has the library put a file into its place, from the blob that is there."""
        from huggingface_hub import hf_hub_download

        path = Path(self._ask(lambda: hf_hub_download(self._order.repo, name, revision=revision)))
        blob = self._folder / "blobs"
        if not path.is_symlink() and path.is_file():  # a system without links: the library copied it
            for twin in blob.glob("*"):
                if twin.is_file() and _size(twin) == _size(path) and not twin.samefile(path):
                    twin.unlink()

    def _has(self, name: str, commit: str) -> bool:
        return (self._folder / "snapshots" / commit / name).exists()

    def _kept(self, note: str) -> dict[str, Any] | None:
        """The model as the cache holds it, None if it does not."""
        reference = self._folder / "refs" / self._order.revision
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else self._order.revision
        snapshot = self._folder / "snapshots" / commit
        found = (path for path in snapshot.rglob("*") if path.is_file()) if _SAFE.fullmatch(commit) else ()
        names = {path.relative_to(snapshot).as_posix(): _size(path) for path in found}
        if not names:
            return None
        try:
            choice = choose(names, self._order.asked, self._order.variant, self._order.repo)
        except Refused:
            return None
        return self._result(choice, commit, snapshot, note)

    def _result(self, choice: Choice, commit: str, snapshot: Path, note: str = "") -> dict[str, Any]:
        return {
            "path": str(snapshot / choice.path),
            "bytes": sum(_size(snapshot / name) for name in choice.files),
            "commit": commit,
            "brought": self._brought,
            "said": choice.said + note,
            "licence": self._licence,
        }

    def _check_space(self, needed: int) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._cache).free
        if needed > free:
            raise disk_full(self._cache, needed, free, "set HF_HOME")

    def _ask(self, question: Callable[[], Result]) -> Result:
        """Asks the library, again where the trouble may pass. Raises Refused, _Unreached."""
        for attempt in range(1, FIRST_TRIES + 1):
            try:
                return question()
            except Exception as error:
                refused = explain(error, self._asked)
                if refused is None:
                    raise
                if not is_passing(error):
                    raise refused from None
                if attempt == FIRST_TRIES:
                    raise _Unreached(refused) from error
                self._report.progress("retry", 0, None)
                time.sleep(WAIT_S * 2 ** (attempt - 1))
        raise AssertionError("the last try has ended")

    def _refuse(self, refused: Refused) -> dict[str, Any]:
        raise refused


class _Unreached(Exception):
    """Nobody answered; the cache may have what is wanted. `refused` is what is said if not."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


def _plain(name: str) -> bool:
    """Whether a name that the other side tells may become a path in the cache."""
    path = PurePosixPath(name)
    return not path.is_absolute() and not {"..", "."} & set(path.parts) and not re.search(r"[\\:\x00-\x1f]", name)


def _text(said: object) -> str | None:
    """The licence of a model card, which may be a list."""
    text = ", ".join(map(str, said)) if isinstance(said, list) else said
    return text[:200] if isinstance(text, str) else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _git_sha1(file: Path) -> str:
    """The checksum that Git, and with it the repository, gives a file that is not large."""
    digest = hashlib.sha1(f"blob {_size(file)}\0".encode(), usedforsecurity=False)
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
