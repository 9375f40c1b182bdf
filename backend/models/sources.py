"""Parse the source of a model that a caller names: a web address, a file on Hugging Face, or (None) a path."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from backend.common.errors import Validation
from backend.common.formats.gguf.kinds import part_names
from backend.common.types import JsonObject
from backend.models.file_names import check_member, check_name, web_suffixes

_HUGGING_FACE = ("huggingface.co", "www.huggingface.co", "hf.co")
_REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_REVISION = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
_VARIANT = re.compile(r"[A-Za-z0-9_]{2,20}", re.ASCII)
_HF_FORM = "The forms are hf:OWNER/REPO, hf:OWNER/REPO:Q4_K_M and hf:OWNER/REPO/FILE, each with or without @REVISION."

# Other programs, whose models are used in place.
STORES = OLLAMA, LM_STUDIO, HUB_CACHE, LLAMA_CPP = "ollama", "lmstudio", "hf-cache", "llama.cpp"
_STORED_NAMES = {"downloaded_files": "brought"}  # fields whose key in the file is another one


def _forms() -> str:
    """Return the remedy that lists the forms of a source."""
    files = " or ".join(web_suffixes())
    return (
        f"Name an https:// address of a {files} file, hf:OWNER/REPO[/FILE], ollama:NAME, lmstudio:NAME, a model id, "
        "or a path in a model folder."
    )


@dataclass(frozen=True)
class Source:
    """Where a model's files come from; models.yaml documents which fields each kind has.

    `hf`: `member` is the requested file or folder, `variant` a quantisation. After the download, `path` is its place in
    the cache, `commit` the snapshot, `downloaded_files` those that came for it, `licence` that of its page.

    One of `STORES`: `member` is the name there, `path` its place, `projector` a further file, `notices`
    what that program would do and Touchstone does not.
    """

    kind: str
    requirement: str | None = None
    member: str | None = None
    url: str | None = None
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    download_bytes: int | None = None
    rebuild: str | None = None
    members: list[str] | None = None
    variant: str | None = None
    commit: str | None = None
    downloaded_files: list[str] | None = None
    licence: str | None = None
    projector: str | None = None
    notices: list[str] | None = None

    def __str__(self) -> str:
        """Return the source as it is shown; a web address without its query, which may contain a secret."""
        if self.kind == "https":
            return urllib.parse.urlsplit(self.url or "")._replace(query="").geturl()
        if self.kind == "hf":
            where = f"/{self.member}" if self.member else f":{self.variant}" if self.variant else ""
            return f"hf:{self.repo}{where}" + (f"@{self.revision}" if self.revision else "")
        if self.kind == "path":
            return str(self.path)
        if self.kind in STORES:
            return f"{self.kind}:{self.member}"
        return f"{self.kind}:{self.requirement}" if self.requirement else self.kind

    @property
    def file_name(self) -> str:
        """The file's name at its source."""
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path) if self.url else None
        named = path or self.member or self.repo or self.path or ""
        if self.kind == OLLAMA:  # a name with a tag
            named = named.removesuffix(":latest").replace(":", "-")
        return PurePosixPath(named.replace("\\", "/")).name + (f"-{self.variant}" if self.variant else "")

    @property
    def asked(self) -> Source:
        """The request, without the result of the download."""
        if self.kind in STORES:
            return Source(self.kind, member=self.member)
        return replace(self, path=None, commit=None, downloaded_files=None, licence=None) if self.kind == "hf" else self

    def addresses(self) -> list[str]:
        """Return the addresses to download: the file, or all parts of a split model."""
        if self.members:
            return [f"{self.url}{member}" for member in self.members]
        parts = urllib.parse.urlsplit(self.url or "")
        folder, slash, name = parts.path.rpartition("/")
        return [parts._replace(path=folder + slash + each).geturl() for each in part_names(name)]


def parse(text: str) -> Source | None:
    """Return the source that a text names; None for a path or an id. Raises Validation, ModelBroken."""
    text = text.strip()
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise Validation("The model's source has control characters.", _forms())
    scheme, colon, rest = text.partition(":")
    if scheme.lower() == "hf" and colon:
        source = _of_hugging_face(rest.removeprefix("//"))
    elif scheme.lower() in ("https", "http") and colon:
        source = _of_address(text)
    elif scheme.lower() in STORES and colon:
        return Source(scheme.lower(), member=rest.removeprefix("//").strip("/"))
    elif "://" in text:
        raise Validation(f"{scheme[:20]}:// is not a supported source of models.", _forms())
    else:
        return None
    if source.kind == "hf":
        check_member(source.member)
    else:
        check_name(source.file_name)
    return source


def _of_address(text: str) -> Source:
    try:
        parts = urllib.parse.urlsplit(text)
        host, _ = (parts.hostname or "").encode("idna").decode("ascii"), parts.port
    except ValueError:
        raise Validation("The model's source is not a valid web address.", _forms()) from None
    if parts.username is not None or parts.password is not None:
        raise Validation(
            "The address contains a user name or password, which would be stored and shown.",
            "Remove it. Download files that need a sign-in another way, and copy them into a model folder.",
        )
    if not host:
        raise Validation("The model's source names no host.", _forms())
    if host.lower() in _HUGGING_FACE:
        return _of_page(parts.path)
    if parts.scheme.lower() != "https" and not _is_loopback(host):
        raise Validation("Models are not downloaded over plain http, where they can be modified.", "Use https://.")
    netloc = f"[{host}]" if ":" in host else host
    netloc += f":{parts.port}" if parts.port is not None else ""
    path, query = (urllib.parse.quote(piece, safe="/%:@!$&'()*+,;=~?") for piece in (parts.path, parts.query))
    return Source("https", url=urllib.parse.urlunsplit((parts.scheme.lower(), netloc, path, query, "")))


def _of_page(path: str) -> Source:
    """Parse `/OWNER/REPO`, also with `/blob/REVISION/FILE` or `/tree/REVISION/FOLDER`, as browsers show it."""
    pieces = [urllib.parse.unquote(piece) for piece in path.strip("/").split("/")]
    if len(pieces) == 3 or (len(pieces) > 3 and pieces[2] not in ("blob", "resolve", "raw", "tree")):
        raise Validation(
            "This is a page of Hugging Face, but not one of a model or a file.",
            "Copy the address of the model's page, or of a file in its list of files.",
        )
    revision = None if len(pieces) < 4 or pieces[3] == "main" else pieces[3]
    return _checked(Source("hf", repo="/".join(pieces[:2]), revision=revision, member="/".join(pieces[4:]) or None))


def _of_hugging_face(text: str) -> Source:
    path, at, revision = text.rpartition("@")
    if not at:
        path, revision = text, ""
    path, colon, variant = path.partition(":")
    pieces = path.strip("/").split("/")
    named = None if revision in ("", "main") else revision
    member = "/".join(pieces[2:]) or None
    if colon and (member or not _VARIANT.fullmatch(variant)):
        raise Validation(f"{'hf:' + text[:100]} is not a model on Hugging Face.", _HF_FORM)
    return _checked(
        Source("hf", repo="/".join(pieces[:2]), revision=named, member=member, variant=variant.upper() or None)
    )


def _checked(source: Source) -> Source:
    pieces = [*(source.repo or "").split("/"), *(source.revision or "x").split("/")]
    if (
        not _REPO.fullmatch(source.repo or "")
        or not _REVISION.fullmatch(source.revision or "main")
        or any(piece in ("", ".", "..") for piece in (*pieces, *(source.member or "x").split("/")))
        or re.search(r"[\\:]", source.member or "")
    ):
        raise Validation(f"{str(source)[:100]} is not a model on Hugging Face.", _HF_FORM)
    return source


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def as_data(source: Source) -> JsonObject:
    """Return the fields that are set, as the file of added models stores them."""
    return {_STORED_NAMES.get(name, name): value for name, value in vars(source).items() if value is not None}


def from_data(data: JsonObject) -> Source:
    """Return the source that `as_data` stored. Raises TypeError for an unknown key."""
    fields = {stored: name for name, stored in _STORED_NAMES.items()}
    return Source(**{fields.get(name, name): value for name, value in data.items()})
