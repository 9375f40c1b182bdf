"""A model file from a web server: streamed, gone on with where it broke off, checked, and moved into place whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from backend import __version__
from backend.child.download.errors import Refused, disk_full, explain_os
from backend.child.download.http_errors import Place, Transient, explain_network, explain_status, is_untrusted
from backend.child.download.network import Net
from backend.child.download.partial_file import Facts, Part
from backend.child.download.workspace import NAME, sweep, sync_folder, turn
from backend.child.progress_report import ProgressReport
from backend.common.errors import ModelBroken
from backend.common.formats.gguf import read_header
from backend.common.formats.gguf.kinds import SPLIT, check_foreign, check_kind

_CHUNK_BYTES = 1 << 20
_WEIGHTS = (".onnx", ".safetensors", ".data")  # beside GGUF: in their place a page or a pointer may have been sent
_HEAD_BYTES = 512  # enough to tell a web page, a pointer, a pickle
FIRST_TRIES, _LATER_TRIES = 4, 8  # without a single new byte: quick words at first, patience once much has come
WAIT_S, _LONGEST_WAIT_S = 0.25, 30.0


@dataclass(frozen=True)
class Order:
    """What is wanted. `name` is what the file is called at its source, `token` goes there and nowhere else."""

    to: Path
    url: str
    sha256: str | None = None
    size_bytes: int | None = None
    name: str = "the file"
    token: str | None = None
    stall_s: float = 30.0


def fetch_http(order: Order, report: ProgressReport, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Fetches the file. Raises Refused."""
    workspace = order.to.parent / NAME
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        sweep(workspace)
        with turn(workspace, order.to.name, report):
            if there := _there(order):
                return there
            return Transfer(order, Part(workspace, order.to.name), report, sleep).run()
    except OSError as error:
        raise explain_os(error, order.to.parent) from error


def _there(order: Order) -> dict[str, Any] | None:
    """The result, if the whole file is in its place already."""
    if not order.to.is_file() or order.size_bytes not in (None, order.to.stat().st_size):
        return None
    digest = hashlib.sha256()
    with order.to.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    try:
        _check_whole(order.to, order.name)
    except ModelBroken:
        return None
    if order.sha256 not in (None, digest.hexdigest()):
        return None
    return {"path": str(order.to), "sha256": digest.hexdigest(), "bytes": order.to.stat().st_size}


def _check_whole(file: Path, name: str) -> None:
    """Looks into what came, which may have another name here. Raises ModelBroken."""
    part = SPLIT.fullmatch(name)
    if name.lower().endswith(".gguf") and (part is None or int(part[2]) == 1):  # further parts say nothing of the model
        try:
            read_header(file)
        except ModelBroken as broken:
            own = PurePosixPath(name).name if file.suffix != ".gguf" else file.name
            raise ModelBroken(broken.detail.replace(file.name, own), broken.remedy) from None


class Transfer:
    """One download, over as many connections as it takes."""

    def __init__(self, order: Order, part: Part, report: ProgressReport, sleep: Callable[[float], None]) -> None:
        self._order, self._part, self._report, self._sleep = order, part, report, sleep
        host = urllib.parse.urlsplit(order.url).hostname or ""
        self._place = Place(host, order.name)
        self._net = Net(order.url, order.token, order.stall_s)
        self._address = hashlib.sha256(order.url.encode()).hexdigest()
        self._total = order.size_bytes

    def run(self) -> dict[str, Any]:
        """Tries until the file is whole, or no new byte comes. If its pieces do not fit, it is fetched once more."""
        try:
            pieced = self._through()
            try:
                return self._finish()
            except Refused:
                self._part.remove()
                if not pieced:
                    raise
            self._through()
            try:
                return self._finish()
            except Refused:
                self._part.remove()
                raise
        finally:
            if not self._part.size:
                self._part.remove()

    def _through(self) -> bool:
        """Brings the part to its full size; tells whether it began with bytes of an earlier run or line."""
        pieced, failures = False, 0
        while True:
            before = self._part.size
            try:
                return self._once() or pieced
            except Transient as trouble:
                came = self._part.size != before
                pieced, failures = pieced or came, 1 if came else failures + 1
                wait_s = min(WAIT_S * 2**failures, _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)
                wait_s = wait_s if trouble.wait_s is None else trouble.wait_s
                tries = _LATER_TRIES if self._part.size else FIRST_TRIES
                if failures >= tries or wait_s > _LONGEST_WAIT_S:
                    raise trouble.refused from trouble
                self._report.progress("retry", self._part.size, self._total)
                self._sleep(wait_s)

    def _once(self) -> bool:
        """One connection. Returns whether it went on with a part. Raises Transient, Refused."""
        kept = self._kept()
        offset = self._part.size if kept else 0
        headers = {"User-Agent": f"Touchstone/{__version__}", "Accept-Encoding": "identity"}
        if kept:
            self._part.catch_up(self._report, kept.total)
            headers["Range"] = f"bytes={offset}-"
            if kept.validator:
                headers["If-Range"] = kept.validator
        with self._open(headers) as answer:
            facts = self._facts(answer)
            goes_on = kept is not None and answer.status == 206 and _same(kept, facts, offset, answer)
            if answer.status == 206 and not goes_on:
                self._part.remove()
                raise Transient(self._broke_off("answered with another part of the file"))
            self._check_size(facts.total, offset if goes_on else 0)
            head = b"" if goes_on else self._head(answer, facts)
            if not goes_on:
                self._part.begin(facts)
            self._stream(answer, head, facts.total)
        return goes_on

    def _kept(self) -> Facts | None:
        """The facts of a part that may be gone on with."""
        facts = self._part.facts()
        wanted = self._order.sha256
        if facts is None or facts.address != self._address or not (facts.validator or facts.sha256 or wanted):
            return None
        if facts.total is not None and self._part.size >= facts.total:
            self._part.cut(facts.total - 1)  # asking for nothing is an error in HTTP: the last byte comes once more
        return facts if self._part.size else None

    def _open(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        try:
            return self._net.open(headers)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416:  # what we have is longer than what there is now
                    self._part.remove()
                    raise Transient(self._broke_off("has a shorter file now")) from None
                found = explain_status(error.code, error.headers, self._place)
            raise found from None
        except (OSError, http.client.HTTPException) as error:
            refused = explain_network(error, self._place)
            if is_untrusted(error):
                raise refused from None
            raise Transient(refused) from None

    def _facts(self, answer: http.client.HTTPResponse) -> Facts:
        sent = answer.headers
        total = re.fullmatch(r"bytes \d+-\d+/(\d+)", sent.get("Content-Range") or "")
        length = total[1] if total else sent.get("Content-Length") if answer.status == 200 else None
        etag = sent.get("ETag")
        validator = etag if etag and not etag.startswith("W/") else sent.get("Last-Modified")
        self._total = int(length) if length and length.isdecimal() else self._order.size_bytes
        return Facts(self._address, self._total, validator, self._order.sha256)

    def _check_size(self, total: int | None, have: int) -> None:
        wanted = self._order.size_bytes
        if wanted is not None and total is not None and total != wanted:
            raise self._broken(f"has {total} bytes instead of {wanted}")
        free = shutil.disk_usage(self._order.to.parent).free + (0 if have else self._part.size)
        if total is not None and total - have > free:
            raise disk_full(self._order.to.parent, needed=total - have, free=free)

    def _head(self, answer: http.client.HTTPResponse, facts: Facts) -> bytes:
        """The first bytes, looked at before an earlier part is given up for them."""
        head = b""
        while len(head) < _HEAD_BYTES and (chunk := self._read(answer, _HEAD_BYTES - len(head))):
            head += chunk
        size = len(head) if facts.total is None else facts.total
        if len(head) < min(size, _HEAD_BYTES):
            raise Transient(self._broke_off(f"broke off after {len(head)} of {size} bytes"))
        try:
            if self._order.name.lower().endswith(".gguf"):
                check_kind(self._order.name, head, size, sys.byteorder)
            elif self._order.name.lower().endswith(_WEIGHTS):
                check_foreign(self._order.name, head, size)
        except ModelBroken as broken:
            raise Refused(broken.code, f"{broken.detail} It came from {self._place.host}.", broken.remedy) from None
        return head

    def _stream(self, answer: http.client.HTTPResponse, chunk: bytes, total: int | None) -> None:
        with self._part.open() as file:
            while chunk or (chunk := self._read(answer, _CHUNK_BYTES)):
                done = self._part.add(file, chunk)
                if total is not None and done > total:
                    self._part.remove()
                    raise self._broken(f"is longer than the {total} bytes that were announced")
                self._report.progress("download", done, total)
                chunk = b""
            os.fsync(file.fileno())
        if total is not None and self._part.size < total:
            raise Transient(self._broke_off(f"broke off after {self._part.size} of {total} bytes"))

    def _read(self, answer: http.client.HTTPResponse, most: int) -> bytes:
        try:
            return answer.read1(most)  # what has come, so that a cut loses none of it
        except (OSError, http.client.HTTPException) as error:
            raise Transient(explain_network(error, self._place)) from None

    def _finish(self) -> dict[str, Any]:
        """Checks the whole file and gives it its name."""
        facts = self._part.facts()
        found, size = self._part.digest.hexdigest(), self._part.size
        wanted = self._order.sha256 or (facts.sha256 if facts else None)  # a part may stem from an order without one
        if wanted not in (None, found):
            raise self._broken(f"has the SHA-256 {found} instead of {wanted}; it was thrown away")
        try:
            _check_whole(self._part.file, self._order.name)
        except ModelBroken as broken:
            raise Refused(broken.code, f"{broken.detail} What came was thrown away.", broken.remedy) from None
        os.replace(self._part.file, self._order.to)  # noqa: PTH105
        sync_folder(self._order.to.parent)
        self._part.remove()
        return {"path": str(self._order.to), "sha256": found, "bytes": size}

    def _broke_off(self, how: str) -> Refused:
        return explain_network(ConnectionError(f"it {how}"), self._place)

    def _broken(self, how: str) -> Refused:
        return Refused(
            "model_broken",
            f"The file {self._place.name} of {self._place.host} {how}.",
            "Try again; if it stays so, the source has another file under this address now.",
        )


def _same(kept: Facts, facts: Facts, offset: int, answer: http.client.HTTPResponse) -> bool:
    """Whether an answer 206 goes on with the very file that the part is of."""
    sent = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range") or "")
    if sent is None or int(sent[1]) != offset or kept.total != facts.total:
        return False
    if kept.validator and facts.validator:
        return kept.validator == facts.validator
    return kept.sha256 is not None and kept.sha256 == facts.sha256
