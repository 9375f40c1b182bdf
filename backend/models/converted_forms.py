"""The forms that were made of a model for other engines (`models convert`), each in a folder of its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from backend.child.convert import FOLDER, FORMS, MANIFEST, place_of, source_bytes
from backend.models.entries import Entry


def with_forms(entry: Entry, models_dir: Path) -> Entry:
    """The entry with the engines of its forms after its own, whose text they only come near."""
    found: dict[str, Path] = {}
    for form in FORMS.values():
        place = place_of(models_dir, entry.id, form.name)
        if form.engine not in (*entry.engines, *found) and _is_of(place, entry):
            found[form.engine] = place
    return replace(entry, engines=(*entry.engines, *found), forms=found) if found else entry


def any_forms(models_dir: Path) -> bool:
    """Whether anything was ever converted here."""
    return (models_dir / FOLDER).is_dir()


def drop_forms(id_: str, models_dir: Path) -> None:
    """Removes what was made of a model."""
    shutil.rmtree(models_dir / FOLDER / id_, ignore_errors=True)


def _is_of(place: Path, entry: Entry) -> bool:
    """Whether a form was made of the file as it is now."""
    try:
        source = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["source"]
        return bool(source["bytes"] == source_bytes(entry.target))
    except (OSError, ValueError, KeyError, TypeError):
        return False
