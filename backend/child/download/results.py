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
