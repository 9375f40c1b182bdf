"""The program that reads what an interpreter's environment holds: metadata and version files. It imports none of it.

Child → parent: one frame `packages`, with
`interpreter {version, bits, path, base, venv, platform}`, `packages {name: version}` of those that matter here,
`shared {import name: [{name, version, missing_files}]}` for each import package and the distributions that bring it,
`on_disk {import name: {name, version}}`: which of them wrote the files last, by their own word,
`builds {import name: {field: text or null}}`: the fields of a `version.py`,
`unmet [{package, needs, found}]`: pinned requirements that the environment does not fulfil, and
`leftovers [folder]`: what a broken uninstall left.
"""

from __future__ import annotations

import ast
import re
import struct
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

from backend.child.wire_protocol import Channel

# What a report is about: engines, what they compute with, and the drivers' halves that come as packages.
_MATTERS = re.compile(
    r"onnx|onnxruntime.*|ort-.*|torch|torch(vision|audio|-.*directml|-xla.*)|pytorch-triton.*|triton.*|"
    r"nvidia-(cuda-runtime|cublas|cudnn|nvjitlink|nccl).*|cuda-toolkit|tensorrt.*|rocm.*|amd-.*|hip-.*|"
    r"intel-(cmplr|sycl|opencl|extension).*|dpcpp.*|openvino.*|directml|windowsml.*|xllamacpp.*|llama-cpp.*|skulk-.*|cyllama.*|"
    r"numpy|transformers|diffusers|accelerate|tokenizers|safetensors|pip",
    re.IGNORECASE,
)
# Import packages that several distributions bring, each overwriting the other's files.
_SHARED = re.compile(r"(onnxruntime|ort-)", re.IGNORECASE)
_FIELD = re.compile(r"^(\w+)\s*(?::[^=]+)?=\s*(None|'[^']*'|\"[^\"]*\")\s*(?:#.*)?$", re.MULTILINE)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)\s*\(?\s*==\s*([^\s;,)*]+)\s*\)?\s*$")


def main(channel: Channel) -> int:
    """Sends the one frame and exits 0."""
    found = [_Distribution(one) for one in metadata.distributions()]
    known: dict[str, _Distribution] = {}
    for one in found:
        known.setdefault(one.key, one)  # the first one on the path is the one that is imported
    channel.send(
        {
            "op": "packages",
            "interpreter": _interpreter(),
            "packages": {one.name: one.version for key, one in sorted(known.items()) if _MATTERS.fullmatch(key)},
            "shared": _shared(known),
            "on_disk": _on_disk(),
            "builds": _builds(),
            "unmet": _unmet(known),
            "leftovers": sorted({path.name for folder in _folders() for path in folder.glob("~*")})[:20],
        }
    )
    return 0


class _Distribution:
    """One installed distribution; one whose metadata are damaged has an empty name."""

    def __init__(self, found: metadata.Distribution) -> None:
        self.found = found
        try:
            self.name = str(found.metadata["Name"] or "")
            self.version = str(found.metadata["Version"] or "")
        except (OSError, ValueError, LookupError, TypeError):
            self.name = self.version = ""
        self.key = re.sub(r"[-_.]+", "-", self.name).lower()

    def brings(self) -> tuple[set[str], int]:
        """The import packages whose `__init__.py` it lists, and how many of its listed files are gone."""
        files = self.found.files or []
        owned = {file.parts[0] for file in files if len(file.parts) == 2 and file.name == "__init__.py"}
        missing = sum(1 for file in files if file.suffix != ".pyc" and not Path(str(file.locate())).exists())
        return owned, missing


def _interpreter() -> dict[str, Any]:
    return {
        "version": ".".join(map(str, sys.version_info[:3])),
        "bits": struct.calcsize("P") * 8,
        "path": sys.executable,
        "base": sys.base_prefix,
        "venv": sys.prefix != sys.base_prefix,
        "platform": sysconfig.get_platform(),
    }


def _shared(known: dict[str, _Distribution]) -> dict[str, list[dict[str, Any]]]:
    shared: dict[str, list[dict[str, Any]]] = {}
    for key, one in sorted(known.items()):
        if _SHARED.match(key):
            owned, missing = one.brings()
            for package in owned:
                entry = {"name": one.name, "version": one.version, "missing_files": missing}
                shared.setdefault(package, []).append(entry)
    return shared


def _on_disk() -> dict[str, dict[str, str]]:
    """ONNX Runtime's wheels say in this file which of them they are."""
    fields = _fields("onnxruntime/capi/build_and_package_info.py")
    if not fields:
        return {}
    return {"onnxruntime": {"name": fields.get("package_name") or "", "version": fields.get("__version__") or ""}}


def _builds() -> dict[str, dict[str, str | None]]:
    fields = _fields("torch/version.py")
    return {"torch": fields} if fields else {}


def _unmet(known: dict[str, _Distribution]) -> list[dict[str, str | None]]:
    unmet: list[dict[str, str | None]] = []
    for key, one in sorted(known.items()):
        for requirement in (one.found.requires or []) if _MATTERS.fullmatch(key) else []:
            if pinned := _PIN.match(requirement.split(";")[0].strip() if ";" not in requirement else ""):
                wanted = re.sub(r"[-_.]+", "-", pinned[1]).lower()
                there = known.get(wanted)
                if there is None or there.version.split("+")[0] != pinned[2].split("+")[0]:
                    found = there.version if there else None
                    unmet.append({"package": one.name, "needs": f"{pinned[1]}=={pinned[2]}", "found": found})
    return unmet[:20]


def _fields(place: str) -> dict[str, str | None]:
    """The plain assignments of a generated Python file, the first one of that name on the path."""
    for folder in _folders():
        try:
            text = (folder / place).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        return {name: ast.literal_eval(value) for name, value in _FIELD.findall(text)}
    return {}


def _folders() -> list[Path]:
    return [Path(entry) for entry in sys.path[1:] if Path(entry).is_dir()]
