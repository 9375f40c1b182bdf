"""What a model's files tell of it: format, architecture, quantisation, context, template, and the forms made of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.child.convert import MANIFEST
from backend.common.errors import ModelBroken, TouchstoneError
from backend.common.files import require_regular_file
from backend.common.formats.gguf import read_header
from backend.common.formats.onnx.graph import read_graph
from backend.common.formats.onnx.validation import read_onnx
from backend.common.formats.safetensors import is_checkpoint, open_checkpoint
from backend.engines._onnx.genai_config import CONFIG, open_folder
from backend.models.entries import Entry
from backend.tasks.songs.diffusers_folder import open_pipeline
from backend.tasks.songs.model_kinds import PIPELINE

# llama.cpp's llama_ftype: what most of the weights are stored as.
_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS"},
    **{20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M"},
    **{28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"},
}


_LICENCE = re.compile(r"---\s*\n(?:(?!---).*\n)*?license:[ \t]*(\S[^\n]{0,100}?)\s*\n")
_CARD = 20_000


def licence(path: Path) -> str | None:
    """The licence that a GGUF file names, or the card (README.md) of a folder."""
    try:
        if path.suffix.lower() == ".gguf":
            return read_header(path).licence
        named = _LICENCE.match(_card(path / "README.md"))
    except (ModelBroken, OSError, ValueError):
        return None
    return named[1].strip("\"'") if named else None


def _card(file: Path) -> str:
    require_regular_file(file)
    with file.open(encoding="utf-8", errors="replace") as card:
        return card.read(_CARD)


def details(entry: Entry) -> dict[str, Any]:
    """The facts that the files give; what they do not say is None. Empty for what cannot be read."""
    try:
        facts = entry.target.stat()
        found = dict(_details(entry.target, facts.st_size, facts.st_mtime_ns))
    except (OSError, ValueError, TouchstoneError):
        return {}
    if entry.forms:
        found["forms"] = {engine: _form(place) for engine, place in entry.forms.items()}
    return found


@lru_cache(maxsize=256)
def _details(path: Path, size: int, mtime_ns: int) -> dict[str, Any]:
    if path.suffix.lower() == ".gguf":
        header = read_header(path)
        return {
            "format": "gguf",
            "architecture": header.architecture,
            "quantisation": _FILE_TYPES.get(-1 if header.file_type is None else header.file_type),
            "context_tokens": header.context_length,
            "chat_template": header.has_chat_template,
            "parts": header.split_count,
        }
    if (path / CONFIG).is_file():
        folder = open_folder(path)
        return {
            "format": "onnx-genai",
            "architecture": folder.model.get("type"),
            "quantisation": "4 or 8 bits" if _quantised(folder.graph) else None,
            "context_tokens": folder.context_length,
            "chat_template": folder.chat_template is not None,
            "parts": 1,
        }
    if (path / PIPELINE).is_file():
        pipeline = open_pipeline(path)
        stored = sum((Counter(model.dtypes) for model in pipeline.models.values()), Counter[str]())
        return {
            "format": "diffusers",
            "architecture": pipeline.kind.name,
            "quantisation": max(stored, key=lambda name: stored[name], default=None),
            "context_tokens": None,
            "chat_template": False,
            "parts": len(pipeline.models),
        }
    if is_checkpoint(path):
        found = open_checkpoint(path)
        return {
            "format": "safetensors",
            "architecture": found.architecture,
            "quantisation": found.quantisation,
            "context_tokens": found.context_length,
            "chat_template": found.has_chat_template,
            "parts": len(found.files),
        }
    if path.suffix.lower() == ".onnx":
        return {"format": "onnx", **read_graph(path).as_data()}
    return {}


def _quantised(graph: Path) -> bool:
    return any(name in ("MatMulNBits", "GatherBlockQuantized") for _, name in read_onnx(graph).operators)


def _form(place: Path) -> dict[str, Any]:
    """What was found when the form was made: how far it says what its source says."""
    made = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    counts = {name: value for name, value in made["comparison"].items() if isinstance(value, int)}
    return {"form": place.name, "bytes": made["bytes"], **counts}
