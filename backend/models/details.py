"""The facts that a model's files declare: format, architecture, quantisation, context, template, converted forms."""

from __future__ import annotations

import io
import json
import re
from functools import lru_cache
from pathlib import Path

from backend.child.convert import MANIFEST
from backend.common.bounded_reads import bounded_read
from backend.common.errors import ModelBroken, TouchstoneError
from backend.common.files import open_regular_file, read_text
from backend.common.types import JsonObject
from backend.engines import model_formats
from backend.models.entries import Entry

_LICENCE = re.compile(r"---\s*\n(?:(?!---).*\n)*?license:[ \t]*(\S[^\n]{0,100}?)\s*\n")
_CARD_CHARS = 20_000


def licence(path: Path) -> str | None:
    """Return the licence that the model file declares, or the card (README.md) of a folder. None if there is none."""
    try:
        return bounded_read(path, lambda: _licence(path))
    except (ModelBroken, OSError, ValueError):
        return None


def _licence(path: Path) -> str | None:
    for model_format in model_formats():
        if model_format.find_licence and model_format.recognises(path):
            return model_format.find_licence(path)
    match = _LICENCE.match(_card(path / "README.md"))
    return match[1].strip("\"'") if match else None


def _card(file: Path) -> str:
    with io.TextIOWrapper(open_regular_file(file), encoding="utf-8", errors="replace") as card:
        return card.read(_CARD_CHARS)


def details(entry: Entry) -> JsonObject:
    """Return the facts of the model's files. Unknown facts are None. Empty for files that cannot be parsed."""
    try:
        facts = entry.target.stat()
        described = dict(_describe(entry.target, facts.st_size, (facts.st_mtime_ns, facts.st_ino)))
    except (OSError, ValueError, TouchstoneError):
        return {}
    if entry.forms:
        described["forms"] = {engine: _form(place) for engine, place in entry.forms.items()}
    return described


def notices_of(facts: JsonObject) -> list[str]:
    """Return the limits of a usable model that follow from its details, as sentences."""
    if error := facts.get("chat_template_error"):
        return [
            f"Its chat template fails: {str(error).rstrip('.')}. Conversations fail; plain completion works "
            "(/v1/completions, or the option `raw`)."
        ]
    return []


@lru_cache(maxsize=2048)  # more than a folder has files: a list asks for each of them again
def _describe(path: Path, size: int, state: tuple[int, int]) -> JsonObject:
    for model_format in model_formats():
        if model_format.describe and model_format.recognises(path):
            return {"format": model_format.name, **model_format.describe(path)}
    return {}


def _form(place: Path) -> JsonObject:
    """Return the facts of a converted form: its size, and how far its output matches that of its source."""
    made = json.loads(read_text(place / MANIFEST))
    counts = {name: value for name, value in made["comparison"].items() if isinstance(value, int)}
    return {"form": place.name, "bytes": made["bytes"], **counts}
