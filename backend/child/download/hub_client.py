"""`huggingface_hub` as the downloading child asks it: what there is, who may have it, where it belongs."""

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

_SAFE = re.compile(r"(?!\.+$)[\w.-]{1,128}", re.ASCII)  # what may be a file's name in the cache
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
class HubFile:
    """A file of the repository: `etag` is its name among the blobs."""

    name: str
    size: int | None
    etag: str


class Unreached(Exception):
    """Nobody answered; the cache may have what is wanted. `refused` is what is said if not."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


class Library:
    """The library, imported here after its variables are set. Its questions raise Refused, Unreached."""

    def __init__(self, order: HubOrder, report: ProgressReport) -> None:
        os.environ.pop("HF_HUB_OFFLINE", None)  # which every child has, so that no engine asks the network
        os.environ.update(order.variables or {})
        os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_VERBOSITY="error")
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
        except ValueError as error:  # the library has rules for names
            raise explain(error, self.query) from None
        self.largest = constants.MAX_HTTP_DOWNLOAD_SIZE  # larger files are given out by the library's own Xet alone
        self.licence: str | None = None

    def listed(self) -> tuple[str, dict[str, int | None]]:
        """The commit, and the files with their sizes."""
        asked = self._order
        info = self._ask(
            lambda: self._api.model_info(
                asked.repo, revision=asked.revision, files_metadata=True, timeout=asked.stall_s
            )
        )
        self.licence = _text(getattr(info.card_data, "license", None))
        if not _SAFE.fullmatch(str(info.sha)):
            raise incompatible_endpoint(self.query)
        return str(info.sha), {one.rfilename: one.size for one in info.siblings or [] if is_plain(one.rfilename)}

    def head(self, name: str, revision: str) -> tuple[str, HubFile]:
        """The commit and the facts of one file."""
        from huggingface_hub import get_hf_file_metadata

        url = self.address(name, revision)
        said = self._ask(lambda: get_hf_file_metadata(url, timeout=self._order.stall_s, token=self.token))
        if not _SAFE.fullmatch(said.commit_hash or "") or not _SAFE.fullmatch(said.etag or ""):
            raise incompatible_endpoint(self.query)
        return str(said.commit_hash), HubFile(name, said.size, str(said.etag))

    def address(self, name: str, revision: str) -> str:
        """Where a file is fetched from."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self._order.repo, name, revision=revision)

    def place(self, name: str, revision: str) -> Path:
        """Has the library put a file into its place, from the blob that is there, or fetch it where none is."""
        from huggingface_hub import hf_hub_download

        return Path(self._ask(lambda: hf_hub_download(self._order.repo, name, revision=revision)))

    def kept_commit(self) -> str | None:
        """The commit that the cache knows under the revision."""
        reference = self.folder / "refs" / self._order.revision
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else self._order.revision
        return commit if _SAFE.fullmatch(commit) else None

    def _ask(self, question: Callable[[], Result]) -> Result:
        """Asks the library, again where the trouble may pass."""
        for attempt in range(1, FIRST_TRIES + 1):
            try:
                return question()
            except Exception as error:
                refused = explain(error, self.query)
                if isinstance(error, OSError) and error.errno:  # of the disk, which the caller explains
                    raise
                if not is_transient(error):
                    raise refused from None
                if attempt == FIRST_TRIES:
                    raise Unreached(refused) from error
                self._report.progress("retry", 0, None)
                time.sleep(BACKOFF_S * 2 ** (attempt - 1))
        raise AssertionError("the last try has ended")


def is_plain(name: str) -> bool:
    """Whether a name that the other side tells may become a path in the cache."""
    path = PurePosixPath(name)
    return not path.is_absolute() and not {"..", "."} & set(path.parts) and not re.search(r"[\\:\x00-\x1f]", name)


def _text(said: object) -> str | None:
    """The licence of a model card, which may be a list."""
    text = ", ".join(map(str, said)) if isinstance(said, list) else said
    return text[:200] if isinstance(text, str) else None
