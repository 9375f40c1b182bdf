"""The program that reads the packages of an interpreter's environment from metadata and version files, without imports.

It sends one frame `packages`:
`interpreter {version, bits, path, base, venv, platform}`, `packages {name: version}` of the relevant ones,
`shared {import name: [{name, version, missing_files}]}` for each import package and the distributions that provide it,
`on_disk {import name: {name, version}}`: which of them wrote the files last, by a file of the package,
`builds {import name: {field: text or null}}`: the fields of a `version.py`,
`unmet [{package, needs, found}]`: pinned requirements that the environment does not meet, and
`leftovers [folder]`: folders that an interrupted uninstall left.
"""

from __future__ import annotations

import ast
import re
import struct
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from backend.child.wire_protocol import Channel

# The relevant packages: engines, their compute libraries, and drivers that are packages.
_RELEVANT = re.compile(
    r"onnx|onnxruntime.*|ort-.*|torch|torch(vision|audio|-.*directml|-xla.*)|pytorch-triton.*|triton.*|"
    r"nvidia-(cuda-runtime|cublas|cudnn|nvjitlink|nccl).*|cuda-toolkit|tensorrt.*|rocm.*|amd-.*|hip-.*|"
    r"intel-(cmplr|sycl|opencl|extension).*|dpcpp.*|openvino.*|directml|windowsml.*|xllamacpp.*|llama-cpp.*|cyllama.*|"
    r"numpy|transformers|diffusers|accelerate|tokenizers|safetensors|pip",
    re.IGNORECASE,
)
# Import packages that several distributions provide, each overwriting the other's files.
_SHARED = re.compile(r"(onnxruntime|ort-)", re.IGNORECASE)
_FIELD = re.compile(r"^(\w+)\s*(?::[^=]+)?=\s*(None|'[^']*'|\"[^\"]*\")\s*(?:#.*)?$", re.MULTILINE)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)\s*\(?\s*==\s*([^\s;,)*]+)\s*\)?\s*$")


def main(channel: Channel) -> int:
    """Send the frame and return 0."""
    distributions: dict[str, _Distribution] = {}
    for entry in metadata.distributions():
        distribution = _Distribution(entry)
        distributions.setdefault(distribution.key, distribution)  # the first one on the path is imported
    channel.send(
        {
            "op": "packages",
            "interpreter": _interpreter(),
            "packages": {
                each.name: each.version for key, each in sorted(distributions.items()) if _RELEVANT.fullmatch(key)
            },
            "shared": _shared(distributions),
            "on_disk": _on_disk(),
            "builds": _builds(),
            "unmet": _unmet(distributions),
            "leftovers": sorted({path.name for folder in _folders() for path in folder.glob("~*")})[:20],
        }
    )
    return 0


class InterpreterFacts(TypedDict):
    """The version of the interpreter, 32 or 64 bits, its path, its base prefix, and its platform tag."""

    version: str
    bits: int
    path: str
    base: str
    venv: bool
    platform: str


class Provider(TypedDict):
    """A distribution that provides an import package, and how many of its listed files are missing."""

    name: str
    version: str
    missing_files: int


class _Distribution:
    """An installed distribution. Its name is empty if its metadata is corrupt."""

    def __init__(self, entry: metadata.Distribution) -> None:
        self.metadata_entry = entry
        try:
            self.name = str(entry.metadata["Name"] or "")
            self.version = str(entry.metadata["Version"] or "")
        except (OSError, ValueError, LookupError, TypeError):
            self.name = self.version = ""
        self.key = re.sub(r"[-_.]+", "-", self.name).lower()

    def provided_packages(self) -> tuple[set[str], int]:
        """Return the import packages whose `__init__.py` it lists, and how many of its listed files are missing."""
        files = self.metadata_entry.files or []
        owned = {file.parts[0] for file in files if len(file.parts) == 2 and file.name == "__init__.py"}
        missing = sum(1 for file in files if file.suffix != ".pyc" and not Path(str(file.locate())).exists())
        return owned, missing


def _interpreter() -> InterpreterFacts:
    return {
        "version": ".".join(map(str, sys.version_info[:3])),
        "bits": struct.calcsize("P") * 8,
        "path": sys.executable,
        "base": sys.base_prefix,
        "venv": sys.prefix != sys.base_prefix,
        "platform": sysconfig.get_platform(),
    }


def _shared(distributions: dict[str, _Distribution]) -> dict[str, list[Provider]]:
    shared: dict[str, list[Provider]] = {}
    for key, distribution in sorted(distributions.items()):
        if _SHARED.match(key):
            owned, missing = distribution.provided_packages()
            for package in owned:
                entry: Provider = {"name": distribution.name, "version": distribution.version, "missing_files": missing}
                shared.setdefault(package, []).append(entry)
    return shared


def _on_disk() -> dict[str, dict[str, str]]:
    """Return which wheel of ONNX Runtime is on disk; each writes its name into this file."""
    fields = _fields("onnxruntime/capi/build_and_package_info.py")
    if not fields:
        return {}
    return {"onnxruntime": {"name": fields.get("package_name") or "", "version": fields.get("__version__") or ""}}


def _builds() -> dict[str, dict[str, str | None]]:
    fields = _fields("torch/version.py")
    return {"torch": fields} if fields else {}


def _unmet(distributions: dict[str, _Distribution]) -> list[dict[str, str | None]]:
    unmet: list[dict[str, str | None]] = []
    for key, distribution in sorted(distributions.items()):
        for requirement in (distribution.metadata_entry.requires or []) if _RELEVANT.fullmatch(key) else []:
            if pinned := _PIN.match(requirement.split(";")[0].strip() if ";" not in requirement else ""):
                required = re.sub(r"[-_.]+", "-", pinned[1]).lower()
                installed = distributions.get(required)
                if installed is None or installed.version.split("+")[0] != pinned[2].split("+")[0]:
                    version = installed.version if installed else None
                    unmet.append({"package": distribution.name, "needs": f"{pinned[1]}=={pinned[2]}", "found": version})
    return unmet[:20]


def _fields(place: str) -> dict[str, str | None]:
    """Return the literal assignments of a generated Python file, the first one of that name on the path."""
    for folder in _folders():
        try:
            text = (folder / place).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        return {name: ast.literal_eval(value) for name, value in _FIELD.findall(text)}
    return {}


def _folders() -> list[Path]:
    return [Path(entry) for entry in sys.path[1:] if Path(entry).is_dir()]
