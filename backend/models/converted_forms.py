"""The converted forms of models for other engines (`models convert`), each in its own folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from backend.child.convert import FOLDER, FORMS, MANIFEST, place_of, source_bytes
from backend.common.files import read_text
from backend.models.entries import Entry


def with_forms(entry: Entry, models_dir: Path) -> Entry:
    """Return the entry with the engines of its converted forms after its own, because forms only approximate it."""
    forms: dict[str, Path] = {}
    for form in FORMS.values():
        place = place_of(models_dir, entry.id, form.name)
        if form.engine not in (*entry.engines, *forms) and _is_of(place, entry):
            forms[form.engine] = place
    return replace(entry, engines=(*entry.engines, *forms), forms=forms) if forms else entry


def drop_forms(id_: str, models_dir: Path) -> None:
    """Remove the converted forms of a model."""
    shutil.rmtree(models_dir / FOLDER / id_, ignore_errors=True)


def _is_of(place: Path, entry: Entry) -> bool:
    """Return whether a form was made from the current file."""
    try:
        source = json.loads(read_text(place / MANIFEST))["source"]
        return bool(source["bytes"] == source_bytes(entry.target))
    except (OSError, ValueError, KeyError, TypeError):
        return False
