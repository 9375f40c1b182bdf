"""Download a file from a web server: streamed, resumed with Range after a break, verified, then moved into place."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import re
import shutil
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from backend.child.download.errors import Refused, disk_full, explain_os, fits
from backend.child.download.http_errors import (
    RemoteFile,
    TransientError,
    explain_network,
    explain_status,
    is_untrusted,
)
from backend.child.download.network import DownloadClient
from backend.child.download.partial_file import FileVersion, PartialFile
from backend.child.download.results import DownloadedFile
from backend.child.download.workspace import NAME, exclusive, sweep, sync_folder
from backend.child.progress_report import ProgressReport
from backend.common.errors import ModelBroken
from backend.common.formats.gguf import read_header
from backend.common.formats.gguf.kinds import SPLIT, check_foreign, check_kind

if TYPE_CHECKING:
    import httpx

_CHUNK_BYTES = 1 << 20
_WEIGHTS = (".onnx", ".safetensors", ".data")  # with GGUF the kinds for which a page or a pointer may have been sent
_HEAD_BYTES = 512  # enough to recognise a web page, a pointer, a pickle
FIRST_TRIES, _LATER_TRIES = 4, 8  # without a new byte: few before the first one, more once part of the file is here
BACKOFF_S, _LONGEST_BACKOFF_S = 0.25, 30.0


@dataclass(frozen=True)
class Order:
    """A file to download.

    `to` is the target, `name` the file's name at its source. Optional: `sha256` and `size_bytes` to verify, `token` for
    the origin of the URL. `stall_s` is the timeout for connecting and for each read.
    """

    to: Path
    url: str
    sha256: str | None = None
    size_bytes: int | None = None
    name: str = "the file"
    token: str | None = None
    stall_s: float = 30.0


def fetch_http(order: Order, report: ProgressReport, sleep: Callable[[float], None] = time.sleep) -> DownloadedFile:
    """Download the file, unless it is in place; return its path, SHA-256 and size. Raises Refused.

    `sleep` waits between retries; default: time.sleep.
    """
    workspace = order.to.parent / NAME
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        sweep(workspace)
        with exclusive(workspace, order.to.name, report):
            if existing := _existing_result(order):
                return existing
            return Transfer(order, PartialFile(workspace, order.to.name), report, sleep).run()
    except OSError as error:
        raise explain_os(error, order.to.parent) from error


def _existing_result(order: Order) -> DownloadedFile | None:
    """Return the result if the complete file is already in place."""
    if not order.to.is_file() or order.size_bytes not in (None, order.to.stat().st_size):
        return None
    digest = hashlib.sha256()
    with order.to.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    try:
        _check_content(order.to, order.name)
    except ModelBroken:
        return None
    if order.sha256 not in (None, digest.hexdigest()):
        return None
    return {"path": str(order.to), "sha256": digest.hexdigest(), "bytes": order.to.stat().st_size}


def _check_content(file: Path, name: str) -> None:
    """Parse the header of a complete GGUF file, which may have another name here. Raises ModelBroken."""
    part = SPLIT.fullmatch(name)
    if name.lower().endswith(".gguf") and (part is None or int(part[2]) == 1):  # later parts hold no model header
        try:
            read_header(file)
        except ModelBroken as broken:
            shown = PurePosixPath(name).name if file.suffix != ".gguf" else file.name
            raise ModelBroken(broken.detail.replace(file.name, shown), broken.remedy) from None


class Transfer:
    """One download, over as many connections as it takes."""

    def __init__(
        self, order: Order, partial: PartialFile, report: ProgressReport, sleep: Callable[[float], None]
    ) -> None:
        self._order, self._partial, self._report, self._sleep = order, partial, report, sleep
        self._remote = RemoteFile(urllib.parse.urlsplit(order.url).hostname or "", order.name)
        self._client = DownloadClient(order.url, order.token, order.stall_s)
        self._url_hash = hashlib.sha256(order.url.encode()).hexdigest()
        self._total = order.size_bytes

    def run(self) -> DownloadedFile:
        """Retry until the file is complete. A file from several pieces that fails its check is fetched once more."""
        try:
            was_resumed = self._transfer()
            try:
                return self._finish()
            except Refused:
                self._partial.remove()
                if not was_resumed:
                    raise
            self._transfer()
            try:
                return self._finish()
            except Refused:
                self._partial.remove()
                raise
        finally:
            if not self._partial.size:
                self._partial.remove()

    def _transfer(self) -> bool:
        """Complete the partial file; return whether it has bytes of an earlier run or connection."""
        was_resumed, failures = False, 0
        while True:
            before = self._partial.size
            try:
                return self._attempt() or was_resumed
            except TransientError as error:
                has_new_bytes = self._partial.size != before
                was_resumed, failures = was_resumed or has_new_bytes, 1 if has_new_bytes else failures + 1
                wait_s = min(BACKOFF_S * 2**failures, _LONGEST_BACKOFF_S) * random.uniform(0.5, 1.0)
                wait_s = wait_s if error.wait_s is None else error.wait_s
                tries = _LATER_TRIES if self._partial.size else FIRST_TRIES
                if failures >= tries or wait_s > _LONGEST_BACKOFF_S:
                    raise error.refused from error
                self._report.progress("retry", self._partial.size, self._total)
                self._sleep(wait_s)

    def _attempt(self) -> bool:
        """Use one connection; return whether it resumed. Raises TransientError, Refused."""
        earlier = self._resumable_version()
        offset = self._partial.size if earlier else 0
        headers: dict[str, str] = {}
        if earlier:
            self._partial.hash_existing(self._report, earlier.total)
            headers["Range"] = f"bytes={offset}-"
            if earlier.validator:
                headers["If-Range"] = earlier.validator
        with self._open(headers) as response:
            version = self._version(response)
            resumes = earlier is not None and _continues(earlier, version, offset, response)
            if response.status_code == 206 and not resumes:
                self._partial.remove()
                raise TransientError(self._interrupted("answered with another part of the file"))
            self._check_size(version.total, offset if resumes else 0)
            chunks = response.iter_raw()  # as they arrive, so that a break loses none of them
            first = b"" if resumes else self._check_head(chunks, version)
            if not resumes:
                self._partial.create(version)
            self._write(first, chunks, version.total)
        return resumes

    def _resumable_version(self) -> FileVersion | None:
        """Return the version of the partial file if it may be resumed."""
        version = self._partial.version()
        sha256 = self._order.sha256
        if version is None or version.address != self._url_hash:
            return None
        if not (version.validator or version.sha256 or sha256):
            return None  # no proof that the rest is of the same file
        if version.total is not None and self._partial.size >= version.total:
            self._partial.truncate(version.total - 1)  # an empty range is an error in HTTP: fetch the last byte again
        return version if self._partial.size else None

    @contextlib.contextmanager
    def _open(self, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Open a response that has the file or a part of it. Raises TransientError, Refused."""
        import httpx

        try:
            with self._client.open(headers) as response:
                if response.status_code == 416:  # the partial file is longer than the file is now
                    self._partial.remove()
                    raise TransientError(self._interrupted("has a shorter file now"))
                if not response.is_success:
                    raise explain_status(response.status_code, response.headers, self._remote)
                yield response
        except httpx.HTTPError as error:
            refused = explain_network(error, self._remote)
            if is_untrusted(error):
                raise refused from None
            raise TransientError(refused) from None

    def _version(self, response: httpx.Response) -> FileVersion:
        headers = response.headers
        content_range = re.fullmatch(r"bytes \d+-\d+/(\d+)", headers.get("Content-Range", ""))
        length = headers.get("Content-Length") if response.status_code == 200 else None
        length = content_range[1] if content_range else length
        etag = headers.get("ETag")
        validator = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
        self._total = int(length) if length and length.isdecimal() else self._order.size_bytes
        return FileVersion(self._url_hash, self._total, validator, self._order.sha256)

    def _check_size(self, total: int | None, offset: int) -> None:
        """Check the announced size, and that it fits on the disk. Raises Refused."""
        expected = self._order.size_bytes
        if expected is not None and total is not None and total != expected:
            raise self._broken(f"has {total} bytes instead of {expected}")
        free = shutil.disk_usage(self._order.to.parent).free + (0 if offset else self._partial.size)
        if total is not None and not fits(total - offset, free):
            raise disk_full(self._order.to.parent, needed=total - offset, free=free)

    def _check_head(self, chunks: Iterator[bytes], version: FileVersion) -> bytes:
        """Return the first bytes. They are checked before they replace an earlier partial file.

        Raises TransientError, Refused.
        """
        first = b""
        for chunk in chunks:
            first += chunk
            if len(first) >= _HEAD_BYTES:
                break
        size = len(first) if version.total is None else version.total
        head = first[:_HEAD_BYTES]
        if len(head) < min(size, _HEAD_BYTES):
            raise TransientError(self._interrupted(f"broke off after {len(head)} of {size} bytes"))
        try:
            if self._order.name.lower().endswith(".gguf"):
                check_kind(self._order.name, head, size, sys.byteorder)
            elif self._order.name.lower().endswith(_WEIGHTS):
                check_foreign(self._order.name, head, size)
        except ModelBroken as broken:
            raise Refused(broken.code, f"{broken.detail} It came from {self._remote.host}.", broken.remedy) from None
        return first

    def _write(self, first: bytes, chunks: Iterator[bytes], total: int | None) -> None:
        """Append the response to the partial file. Raises TransientError if it ends early, Refused if too long."""
        with self._partial.open() as file:
            for chunk in itertools.chain([first] if first else [], chunks):
                done = self._partial.append(file, chunk)
                if total is not None and done > total:
                    self._partial.remove()
                    raise self._broken(f"is longer than the {total} bytes that were announced")
                self._report.progress("download", done, total)
            os.fsync(file.fileno())
        if total is not None and self._partial.size < total:
            raise TransientError(self._interrupted(f"broke off after {self._partial.size} of {total} bytes"))

    def _finish(self) -> DownloadedFile:
        """Verify the complete file and move it into place. Raises Refused."""
        version = self._partial.version()
        sha256, size = self._partial.digest.hexdigest(), self._partial.size
        expected = self._order.sha256 or (version.sha256 if version else None)  # an earlier order may have had one
        if expected not in (None, sha256):
            raise self._broken(f"has the SHA-256 {sha256} instead of {expected}; it was deleted")
        try:
            _check_content(self._partial.file, self._order.name)
        except ModelBroken as broken:
            raise Refused(broken.code, f"{broken.detail} The download was deleted.", broken.remedy) from None
        os.replace(self._partial.file, self._order.to)  # noqa: PTH105
        sync_folder(self._order.to.parent)
        self._partial.remove()
        return {"path": str(self._order.to), "sha256": sha256, "bytes": size}

    def _interrupted(self, how: str) -> Refused:
        return explain_network(ConnectionError(f"it {how}"), self._remote)

    def _broken(self, how: str) -> Refused:
        return Refused(
            "model_broken",
            f"The file {self._remote.name} of {self._remote.host} {how}.",
            "Retry; if it repeats, the server has another file at this address now.",
        )


def _continues(earlier: FileVersion, version: FileVersion, offset: int, response: httpx.Response) -> bool:
    """Return whether a response is the rest of the file that the partial file is of."""
    start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if response.status_code != 206 or start is None or int(start[1]) != offset or earlier.total != version.total:
        return False
    if earlier.validator and version.validator:
        return earlier.validator == version.validator
    return earlier.sha256 is not None and earlier.sha256 == version.sha256
