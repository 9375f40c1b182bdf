"""Reads what a caller names as a model's source: a web address, a file on Hugging Face, or (None) a path."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from backend.catalogue.names import check_name
from backend.errors import Validation

_HUGGING_FACE = ("huggingface.co", "www.huggingface.co", "hf.co")
_DEFAULT_ENDPOINT = "https://huggingface.co"
_REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_REVISION = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
_FORMS = "Name an https:// address of a .gguf file, hf:OWNER/REPO/FILE.gguf, a model id, or a path in a model folder."


@dataclass(frozen=True)
class Source:
    """Where a model's file comes from; models.yaml tells which fields each kind has."""

    kind: str
    requirement: str | None = None
    member: str | None = None
    url: str | None = None
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    download_bytes: int | None = None

    def __str__(self) -> str:
        """As it is shown, and for a web address without the query, which may hold a secret."""
        if self.kind == "https":
            return urllib.parse.urlsplit(self.url or "")._replace(query="").geturl()
        if self.kind == "hf":
            return f"hf:{self.repo}/{self.member}" + (f"@{self.revision}" if self.revision else "")
        if self.kind == "path":
            return str(self.path)
        return f"{self.kind}:{self.requirement}" if self.requirement else self.kind

    @property
    def file_name(self) -> str:
        """The file's name at its source."""
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path) if self.url else self.member or self.path
        return PurePosixPath((path or "").replace("\\", "/")).name

    def address(self, environ: Mapping[str, str]) -> str:
        """What is fetched; HF_ENDPOINT names a mirror of Hugging Face."""
        if self.kind == "hf":
            endpoint = (environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
            revision = urllib.parse.quote(self.revision or "main", safe="")
            return f"{endpoint}/{self.repo}/resolve/{revision}/{urllib.parse.quote(self.member or '')}"
        return self.url or ""


def parse(text: str) -> Source | None:
    """The source that a text names; None if it is a path or an id. Raises Validation, ModelBroken."""
    text = text.strip()
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise Validation("The model's source has control characters.", _FORMS)
    scheme, colon, rest = text.partition(":")
    if scheme.lower() == "hf" and colon:
        source = _of_hugging_face(rest.removeprefix("//"))
    elif scheme.lower() in ("https", "http") and colon:
        source = _of_address(text)
    elif "://" in text:
        raise Validation(f"{scheme[:20]}:// is not a source that models are fetched from.", _FORMS)
    else:
        return None
    check_name(source.file_name)
    return source


def _of_address(text: str) -> Source:
    try:
        parts = urllib.parse.urlsplit(text)
        host, _ = (parts.hostname or "").encode("idna").decode("ascii"), parts.port
    except ValueError:
        raise Validation("The model's source is not a valid web address.", _FORMS) from None
    if parts.username is not None or parts.password is not None:
        raise Validation(
            "The address has a name or password in it, which would be stored and shown.",
            "Leave it out; fetch what needs a sign-in another way and put it into a model folder.",
        )
    if not host:
        raise Validation("The model's source names no host.", _FORMS)
    if host.lower() in _HUGGING_FACE:
        return _of_page(parts.path)
    if parts.scheme.lower() != "https" and not _is_loopback(host):
        raise Validation("Models are not fetched over plain http, where anyone may change them.", "Use https://.")
    netloc = f"[{host}]" if ":" in host else host
    netloc += f":{parts.port}" if parts.port is not None else ""
    path, query = (urllib.parse.quote(piece, safe="/%:@!$&'()*+,;=~?") for piece in (parts.path, parts.query))
    return Source("https", url=urllib.parse.urlunsplit((parts.scheme.lower(), netloc, path, query, "")))


def _of_page(path: str) -> Source:
    """`/OWNER/REPO/blob/REVISION/FILE`, as a browser shows it; `raw` would give the pointer and not the file."""
    pieces = [urllib.parse.unquote(piece) for piece in path.strip("/").split("/")]
    if len(pieces) < 5 or pieces[2] not in ("blob", "resolve", "raw"):
        raise Validation(
            "That is a page of Hugging Face and not a file there.", "Open the file in the list of files and copy that."
        )
    revision = None if pieces[3] == "main" else pieces[3]
    return _checked(Source("hf", repo="/".join(pieces[:2]), revision=revision, member="/".join(pieces[4:])))


def _of_hugging_face(text: str) -> Source:
    path, at, revision = text.rpartition("@")
    if not at:
        path, revision = text, ""
    pieces = path.strip("/").split("/")
    if len(pieces) < 3:
        raise Validation(f"{'hf:' + text[:100]} names no file.", "The form is hf:OWNER/REPO/FILE.gguf or …@REVISION.")
    named = None if revision in ("", "main") else revision
    return _checked(Source("hf", repo="/".join(pieces[:2]), revision=named, member="/".join(pieces[2:])))


def _checked(source: Source) -> Source:
    pieces = [*(source.repo or "").split("/"), *(source.revision or "x").split("/"), *(source.member or "").split("/")]
    if (
        not _REPO.fullmatch(source.repo or "")
        or not _REVISION.fullmatch(source.revision or "main")
        or any(piece in ("", ".", "..") for piece in pieces)
    ):
        raise Validation(f"{str(source)[:100]} is not a file of Hugging Face.", "The form is hf:OWNER/REPO/FILE.gguf.")
    return source


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def as_data(source: Source) -> dict[str, Any]:
    """The fields that are set."""
    return {name: value for name, value in vars(source).items() if value is not None}
