"""Looks at a model's file: is it there, whole, and something that an engine of this version reads?"""

from __future__ import annotations

import stat
from pathlib import Path

from backend.common.errors import ModelBroken, ModelIncompatible, ModelNotDownloaded, TouchstoneError, unicode
from backend.common.formats.gguf import how_to_join, is_split_by_hand, parts, read_header
from backend.common.formats.gguf.kinds import PICKLES, SPLIT
from backend.common.formats.onnx.graph import read_graph
from backend.common.formats.safetensors import CONFIG as CHECKPOINT_CONFIG
from backend.common.formats.safetensors import Checkpoint, is_checkpoint, open_checkpoint
from backend.engines import Engine, engines
from backend.engines._onnx.genai_config import CONFIG, open_folder
from backend.models.entries import BUILT_IN, Entry, suffixes
from backend.tasks.options.songs import check_usual
from backend.tasks.songs.adapter import ENGINE as ADAPTER
from backend.tasks.songs.adapter import read_adapter
from backend.tasks.songs.diffusers_folder import open_pipeline
from backend.tasks.songs.model_kinds import PIPELINE, declared
from backend.tasks.songs.musicgen_folder import MELODY as MUSICGEN_MELODY
from backend.tasks.songs.musicgen_folder import PLAIN as MUSICGEN
from backend.tasks.songs.musicgen_folder import open_musicgen

FETCHABLE = ("pypi-wheel", "https", "hf")
_INSTALL_AGAIN = "It comes with Touchstone: get all of its files again (git restore, or a new copy)."


def is_there(path: Path) -> bool:
    """Whether something is at a path; at one that no file can have (too long, say) there is nothing."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def fetching(entry: Entry) -> str:
    """What brings a model."""
    return f"Fetch it on the page, or with: python -m backend models fetch {entry.id}"


def _beforehand(entry: Entry) -> str:
    """What should be known of a large model before it is fetched: licence, terms, memory."""
    if not entry.facts:
        return ""
    terms = " Accept its terms at Hugging Face first." if entry.facts["gated"] else ""
    memory = [f"{one['bytes'] / 1e9:.0f} GB ({one['setting']})" for one in entry.facts["memory"]]
    return f" Licence: {entry.licence}.{terms} Memory: {', '.join(memory) or 'not told'}."


def absent(entry: Entry, error: Exception) -> TouchstoneError:
    """What it means that a model's file cannot be looked at, and what brings it."""
    if not isinstance(error, FileNotFoundError):
        reason = getattr(error, "strerror", None) or str(error)
        return ModelBroken(f"{entry.target} cannot be read: {reason}.", "Correct the path or its permissions.")
    if entry.source and entry.source.kind in FETCHABLE:
        return ModelNotDownloaded(f"{entry.name} is not on this machine yet.{_beforehand(entry)}", fetching(entry))
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


def check(entry: Entry, size_bytes: int) -> ModelBroken | ModelIncompatible | ModelNotDownloaded | None:
    """Looks into a file or folder that is there. ModelIncompatible is what is whole, but not read as it is."""
    if refused := _by_name(entry.target):
        return refused
    if not entry.engines:
        return _unread(entry)
    if missing := _missing_file(entry):
        if entry.source and entry.source.kind in FETCHABLE:
            return _not_whole(entry, missing)
        remedy = _INSTALL_AGAIN if entry.source and entry.source.kind == BUILT_IN else "Put the whole model there."
        return ModelBroken(f"{entry.target} has no file {missing}.", remedy)
    if entry.source and entry.size_bytes not in (None, size_bytes) and not entry.target.is_dir():
        return ModelBroken(
            f"{entry.target.name} has {size_bytes} bytes instead of {entry.size_bytes}.",
            f"Fetch it again: python -m backend models fetch {entry.id}",
        )
    found = _by_content(entry)
    if found and (lacking := found.extra.get("missing")) and entry.source and entry.source.kind in FETCHABLE:
        return _not_whole(entry, lacking)
    return found


def _not_whole(entry: Entry, missing: str) -> ModelNotDownloaded:
    return ModelNotDownloaded(f"{entry.name} is not whole: {missing} is missing.", fetching(entry))


def _by_name(path: Path) -> ModelBroken | None:
    """What a name alone forbids."""
    if path.name != unicode(path.name):  # neither the engine nor a receipt could name it
        return ModelBroken(f"The name of the file {path.name} is not UTF-8.", "Give the file another name.")
    if path.suffix.lower() in PICKLES:
        return ModelBroken(
            f"{path.name} is a pickle file, which can carry programs and is never loaded.",
            "Fetch the model as GGUF, ONNX or safetensors.",
        )
    if is_split_by_hand(path.name):
        return ModelBroken(f"{path.name} is one piece of a model cut by hand.", how_to_join(path.name))
    return None


def _unread(entry: Entry) -> ModelBroken | ModelIncompatible:
    """Why no engine reads it, as far as its kind is known."""
    path, suffix = entry.target, entry.target.suffix.lower()
    try:
        if (path / PIPELINE).is_file():
            open_pipeline(path)  # it says why
        if is_checkpoint(path):
            return _unread_checkpoint(entry, open_checkpoint(path))
    except ModelBroken as broken:
        return broken
    if refused := _not_by_itself(path):
        return refused
    return ModelBroken(
        f"No engine of this version reads {'folders' if path.is_dir() else suffix or 'such'} models.",
        f"These are read: {', '.join(sorted(suffixes()))}, and folders with {CONFIG}.",
    )


def _not_by_itself(path: Path) -> ModelBroken | None:
    """What is only a part of a model, or holds several."""
    if path.suffix.lower() == ".safetensors":
        return ModelBroken(
            f"{path.name} has weights alone; what they belong to stands in other files.",
            f"Name the folder with its {CHECKPOINT_CONFIG}: {path.parent}",
        )
    inside = sorted(path.iterdir()) if path.is_dir() else []
    if models := [file for file in inside if file.suffix.lower() in (".gguf", ".onnx")]:
        return ModelBroken(f"{path.name} is a folder with models, and none by itself.", f"Name the file: {models[0]}")
    if pickles := [file.name for file in inside if file.suffix.lower() in PICKLES]:
        return ModelBroken(
            f"{path.name} has its weights as pickle files ({pickles[0]}), which can carry programs: none is loaded.",
            "Fetch the same model as GGUF, safetensors or ONNX.",
        )
    return None


def _unread_checkpoint(entry: Entry, found: Checkpoint) -> ModelIncompatible:
    stored = f"{found.architecture or 'a model of no name'}, {found.quantisation}"
    said = f"{entry.target.name} holds weights as safetensors ({stored}), which no engine here runs as they are."
    if not found.makes_text:
        return ModelIncompatible(said, "It is no model that goes on with a text; for those there is no engine here.")
    return ModelIncompatible(
        said,
        "Put its tokenizer.json beside it, and the runtimes with torch run it. Or make a form that runs without them: "
        f"python -m backend models convert {entry.id} --to onnx-int8. Or fetch the model as GGUF.",
    )


def _by_content(entry: Entry) -> ModelBroken | ModelIncompatible | None:
    """What the files themselves say."""
    known = [engines()[name] for name in entry.engines if name in engines() and name not in entry.forms]
    try:
        _check_song(entry, known)
        texts = [engine for engine in known if not engine.classes]
        if is_checkpoint(entry.target) and (not known or any(CHECKPOINT_CONFIG in engine.files for engine in texts)):
            found = open_checkpoint(entry.target)
            if not found.makes_text:
                return _unread_checkpoint(entry, found)
        if any(CONFIG in engine.files for engine in known) and entry.target.is_dir():
            open_folder(entry.target)
        if entry.target.suffix.lower() == ".onnx":
            read_graph(entry.target)
        if any(".gguf" in engine.suffixes for engine in known) and not entry.target.is_dir():
            return _missing_part(entry.target, read_header(entry.target).split_count)
    except ModelBroken as broken:
        return broken
    except ModelIncompatible as refused:  # whole, and not for this version
        return ModelBroken(refused.detail, refused.remedy)
    return None


def _check_song(entry: Entry, known: list[Engine]) -> None:
    """Raises ModelBroken, ModelIncompatible for a song model that is not whole."""
    if (entry.target / PIPELINE).is_file() and any(PIPELINE in engine.files for engine in known):
        open_pipeline(entry.target)
    if declared(entry.target) in (MUSICGEN, MUSICGEN_MELODY):
        open_musicgen(entry.target)
    if ADAPTER in entry.engines:
        read_adapter(entry.target)
    if entry.song:
        check_usual(entry.song)


def _missing_file(entry: Entry) -> str | None:
    """A file that every engine of a folder needs one of, if none has all of its own."""
    if not entry.target.is_dir():
        return None
    missing = [
        next((file for file in files if not any(entry.target.glob(file))), None)
        for name in entry.engines
        if name in engines() and name not in entry.forms
        for files in _kinds_of(entry, name)
    ]
    return None if None in missing else next(iter(missing), None)


def _kinds_of(entry: Entry, engine: str) -> tuple[tuple[str, ...], ...]:
    """The files that an engine needs: those that the source has, else those of each kind of model for the task."""
    if entry.source and entry.source.members:
        return (tuple(entry.source.members),)
    facts = engines()[engine]
    return facts.other_files.get(entry.task, (facts.files,))


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
        if (kin := parts(path)) != [path]:
            return sum(part.stat().st_size for part in kin)
    except (OSError, ValueError):
        return None
    return facts.st_size
