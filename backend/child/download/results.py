"""The orders and results of the download program, see `backend/child/one_shot.py` and `programs/download.py`."""

from __future__ import annotations

from typing import TypedDict


class FileOrder(TypedDict):
    """A file to download: its URL, its name at the source, and the path to write to."""

    url: str
    name: str
    to: str


class WebOrder(TypedDict):
    """The files of a model from a web server, the model first. `stall_s`: timeout for connecting and each read."""

    files: list[FileOrder]
    stall_s: float


class DownloadedFile(TypedDict):
    """A downloaded model. `bytes` counts all its files."""

    path: str
    sha256: str
    bytes: int


class HubDownload(TypedDict):
    """A model in the cache of Hugging Face. `brought`: the files that were downloaded, `said`: a note on the choice."""

    path: str
    bytes: int
    commit: str
    brought: list[str]
    said: str
    licence: str | None


class FoundFile(TypedDict):
    """A model in a repository: its file, or the first of its parts. `bytes` counts all parts."""

    name: str
    source: str
    bytes: int | None
    parts: int
    quantization: str | None


class FoundRepository(TypedDict):
    """A repository that a search found. `reason`: why its files are not listed. `page`: where a licence is accepted."""

    source: str
    name: str
    author: str
    downloads: int | None
    likes: int | None
    licence: str | None
    updated_at: str | None
    gated: bool
    page: str
    reason: str | None
    files: list[FoundFile]


class HubSearch(TypedDict):
    """The result of a search."""

    results: list[FoundRepository]
