"""A client of `huggingface_hub`: list files, read their metadata, place them in the cache."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from backend import __version__
from backend.child.download.errors import Refused
from backend.child.download.http import BACKOFF_S, FIRST_TRIES
from backend.child.download.hub_errors import HubQuery, explain, incompatible_endpoint, is_transient
from backend.child.download.network import trusted_certificates
from backend.child.progress_report import ProgressReport

_SAFE_NAME = re.compile(r"(?!\.+$)[\w.-]{1,128}", re.ASCII)  # of a file in the cache
Result = TypeVar("Result")


@dataclass(frozen=True)
class HubOrder:
    """A model to fetch.

    Optional: `asked`, a file or folder; `variant`, a quantization such as Q8_0; `sha256`, that of the file `asked`;
    `variables`, the user's environment variables that configure the library. `stall_s` is the timeout of a request.
    """

    repo: str
    revision: str = "main"
    asked: str | None = None
    variant: str | None = None
    sha256: str | None = None
    stall_s: float = 30.0
    variables: Mapping[str, str] | None = None


@dataclass(frozen=True)
class HubFile:
    """A file of the repository. `etag` is its name in the cache's `blobs`, `size` its bytes if known."""

    name: str
    size: int | None
    etag: str


class Unreached(Exception):
    """The Hub did not answer. `refused` is the error to raise if the cache does not have the model."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


def configure_library(variables: Mapping[str, str]) -> None:
    """Set the user's environment variables; call it before the library is imported."""
    os.environ.pop("HF_HUB_OFFLINE", None)  # set for every child, so that no engine uses the network
    os.environ.update(variables)
    os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_VERBOSITY="error")


class HubClient:
    """The library, imported after its variables are set. All requests raise Refused, Unreached."""

    def __init__(self, order: HubOrder, report: ProgressReport) -> None:
        configure_library(order.variables or {})
        import httpx2
        from huggingface_hub import HfApi, constants, get_token, set_client_factory
        from huggingface_hub.file_download import repo_folder_name
        from huggingface_hub.utils._http import hf_request_event_hook

        context = trusted_certificates()
        hooks: Any = {"request": [hf_request_event_hook]}
        set_client_factory(
            lambda: httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=None, verify=context)
        )
        self._order, self._report = order, report
        self._api = HfApi(library_name="touchstone", library_version=__version__)
        self.offline = constants.is_offline_mode()
        self.token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        self.query = HubQuery(order.repo, order.revision, order.asked, constants.ENDPOINT, bool(self.token))
        self.cache = Path(constants.HF_HUB_CACHE)
        try:
            self.folder = self.cache / repo_folder_name(repo_id=order.repo, repo_type="model")
        except ValueError as error:  # the library validates names
            raise explain(error, self.query) from None
        self.largest = constants.MAX_HTTP_DOWNLOAD_SIZE  # larger files are served only over the library's Xet protocol
        self.licence: str | None = None

    def list_files(self) -> tuple[str, dict[str, int | None]]:
        """Return the commit, and the files with their sizes in bytes."""
        order = self._order
        info = self._retry(
            lambda: self._api.model_info(
                order.repo, revision=order.revision, files_metadata=True, timeout=order.stall_s
            )
        )
        self.licence = licence_text(getattr(info.card_data, "license", None))
        if not _SAFE_NAME.fullmatch(str(info.sha)):
            raise incompatible_endpoint(self.query)
        files = [file for file in info.siblings or [] if is_safe_path(file.rfilename)]
        return str(info.sha), {file.rfilename: file.size for file in files}

    def head(self, name: str, revision: str) -> tuple[str, HubFile]:
        """Return the commit and the metadata of one file."""
        from huggingface_hub import get_hf_file_metadata

        url = self.url(name, revision)
        metadata = self._retry(lambda: get_hf_file_metadata(url, timeout=self._order.stall_s, token=self.token))
        if not _SAFE_NAME.fullmatch(metadata.commit_hash or "") or not _SAFE_NAME.fullmatch(metadata.etag or ""):
            raise incompatible_endpoint(self.query)
        return str(metadata.commit_hash), HubFile(name, metadata.size, str(metadata.etag))

    def url(self, name: str, revision: str) -> str:
        """Return the URL of a file."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self._order.repo, name, revision=revision)

    def place(self, name: str, revision: str) -> Path:
        """Let the library link a blob into the snapshot, or download it if there is none; return the path."""
        from huggingface_hub import hf_hub_download

        return Path(self._retry(lambda: hf_hub_download(self._order.repo, name, revision=revision)))

    def cached_commit(self) -> str | None:
        """Return the commit of the revision in the cache, None if the name is not safe."""
        reference = self.folder / "refs" / self._order.revision
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else self._order.revision
        return commit if _SAFE_NAME.fullmatch(commit) else None

    def _retry(self, request: Callable[[], Result]) -> Result:
        """Call the library; retry errors that may be transient."""
        for attempt in range(1, FIRST_TRIES + 1):
            try:
                return request()
            except Exception as error:
                refused = explain(error, self.query)
                if isinstance(error, OSError) and error.errno:  # a disk error, which the caller explains
                    raise
                if not is_transient(error):
                    raise refused from None
                if attempt == FIRST_TRIES:
                    raise Unreached(refused) from error
                self._report.progress("retry", 0, None)
                time.sleep(BACKOFF_S * 2 ** (attempt - 1))
        raise AssertionError("the last attempt raises")


def is_safe_path(name: str) -> bool:
    """Return whether a file name from the server may become a path in the cache."""
    path = PurePosixPath(name)
    return not path.is_absolute() and not {"..", "."} & set(path.parts) and not re.search(r"[\\:\x00-\x1f]", name)


def licence_text(value: object) -> str | None:
    """Return the licence of a model card as text; it may be a list."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    return text[:200] if isinstance(text, str) else None
