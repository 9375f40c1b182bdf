"""Two package indexes on loopback, made of a recipe: the vendor's, and a general one with higher versions of all."""

from __future__ import annotations

import hashlib
import http.server
import io
import re
import tarfile
import zipfile
from collections.abc import Iterable

from backend.runtimes.recipes import Build, Recipe
from tests.gated_server import GatedServer

CHIP = "gfx1100"
VENDOR, GENERAL = "vendor", "general"
Files = dict[str, dict[str, bytes]]  # by project: the files by name

_WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_BACKEND = """
import os, zipfile
META = {metadata!r}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = {stem!r} + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for file, text in {{"METADATA": META, "WHEEL": {wheel!r}, "RECORD": ""}}.items():
            wheel.writestr({stem!r} + ".dist-info/" + file, text)
    return name
"""


class PlayedIndexes(GatedServer):
    """Serves the indexes of `files`. Addresses change with them, so that uv's cache does not matter."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.files: dict[str, Files] = {}
        self.asked: set[str] = set()
        self._times = 0

    def serve(self, files: dict[str, Files]) -> None:
        """Serve other files from now on."""
        self.files, self.asked = files, set()
        self._times += 1

    def url(self, index: str) -> str:
        """The address of an index."""
        return f"{self.origin}/{self._times}/{index}"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """The page of a project, a file, or the metadata of a wheel."""
        self.asked.add(handler.path)
        times, index, project, *rest = handler.path.replace("%2B", "+").strip("/").split("/")
        files = self.files[index].get(project)
        name = rest[0] if rest else ""
        body: bytes | None
        if files is None:
            body = None
        elif not name:
            folder = f"/{times}/{index}/{project}"
            body = "".join(_link(folder, file, content) for file, content in files.items()).encode()
        elif name.endswith(".metadata"):
            with zipfile.ZipFile(io.BytesIO(files[name.removesuffix(".metadata")])) as wheel:
                body = wheel.read(next(each for each in wheel.namelist() if each.endswith("/METADATA")))
        else:
            body = files[name]
        handler.send_response(404 if body is None else 200)
        handler.send_header("Content-Type", "application/octet-stream" if name else "text/html")
        handler.send_header("Content-Length", str(len(body or b"")))
        handler.end_headers()
        handler.wfile.write(body or b"")


def _link(folder: str, file: str, content: bytes) -> str:
    # A vendor may publish a file without its hash.
    fragment = "" if file.endswith(".tar.gz") else f"#sha256={hashlib.sha256(content).hexdigest()}"
    metadata = ' data-core-metadata="true"' if file.endswith(".whl") else ""
    return f'<a href="{folder}/{file.replace("+", "%2B")}{fragment}"{metadata}>{file}</a>'


def play(recipe: Recipe, build: Build, local: str) -> dict[str, Files]:
    """The indexes for a build: the vendor's packages have the local version `local`; the general index is ahead."""
    assert build.index
    vendor: Files = {}
    general: Files = {}
    put(general, "numpy", "2")
    put(vendor, "numpy", "0.1")  # vendors mirror old versions of general packages
    wildcards = [pattern.replace("*", "-part") for pattern in build.index.packages if "*" in pattern]
    needs = [f"{name}==1.0+{local}" for name in wildcards] + [f"{name}==10.1" for name in build.index.sources]
    for line in recipe.lines(CHIP):
        name, lowest = _parsed(line)
        if name in build.index.packages:
            extras = re.findall(r"\[(.+)\]", line)
            chips = [f"amd-{name}-{extra}" for extra in extras]
            put(vendor, name, f"{lowest}+{local}", [*needs, "numpy", *_by_extra(extras, chips)], extras)
            for chip in chips:
                put(vendor, chip, f"{lowest}+{local}")
            put(general, name, lowest)
            put(general, name, f"{lowest}.post9")
        else:
            put(general, name, lowest)
            put(vendor, name, "0.1")
    for name in wildcards:
        put(vendor, name, f"1.0+{local}")
        put(general, name, "9.0")
    for name in build.index.sources:
        vendor[name] = {f"{name}-10.1.tar.gz": source_package(name, "10.1")}
        put(general, name, "99")
    return {VENDOR: vendor, GENERAL: general}


def _parsed(line: str) -> tuple[str, str]:
    """The name of a requirement line, and the lowest version that fits."""
    match = re.match(r"([A-Za-z0-9._-]+)(?:\[.+\])?[=>]=([0-9A-Za-z.]+)", line)
    assert match, line
    return match[1].lower().replace("_", "-"), match[2].rstrip(".")


def _by_extra(extras: list[str], names: list[str]) -> list[str]:
    return [f"{name}; extra == '{extra}'" for extra, name in zip(extras, names, strict=True)]


def put(files: Files, name: str, version: str, needs: Iterable[str] = (), extras: Iterable[str] = ()) -> None:
    """Add a wheel without content."""
    stem = f"{name.replace('-', '_')}-{version}"
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", _metadata(name, version, needs, extras))
        archive.writestr(f"{stem}.dist-info/WHEEL", _WHEEL)
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    files.setdefault(name, {})[f"{stem}-py3-none-any.whl"] = held.getvalue()


def source_package(name: str, version: str) -> bytes:
    """A source package whose build program is inside."""
    stem, held = f"{name}-{version}", io.BytesIO()
    metadata = _metadata(name, version)
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']\n",
        "own.py": _BACKEND.format(metadata=metadata, wheel=_WHEEL, stem=stem),
        "PKG-INFO": metadata,
    }
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for file, text in files.items():
            facts = tarfile.TarInfo(f"{stem}/{file}")
            facts.size = len(text.encode())
            archive.addfile(facts, io.BytesIO(text.encode()))
    return held.getvalue()


def _metadata(name: str, version: str, needs: Iterable[str] = (), extras: Iterable[str] = ()) -> str:
    lines = [*(f"Requires-Dist: {need}" for need in needs), *(f"Provides-Extra: {extra}" for extra in extras)]
    return "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]) + "\n"
