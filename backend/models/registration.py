"""Add models to the catalogue and remove them, with all checks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from backend.child.download.workspace import NAME, lock_for, part_for
from backend.common.commands import command
from backend.common.config.settings.schema import Task
from backend.common.errors import Configuration, JobActive, ModelBroken, ModelNotDownloaded, UnknownModel, Validation
from backend.common.files import is_reserved_windows_name
from backend.common.formats.gguf import parts
from backend.common.formats.gguf.kinds import part_names
from backend.engines import engines
from backend.models import hub_cache
from backend.models.converted_forms import drop_forms
from backend.models.entries import Entry, entry_for
from backend.models.file_checks import check, is_there
from backend.models.model_ids import slug
from backend.models.sources import STORES, Source, parse
from backend.models.stores import find_stored

if TYPE_CHECKING:
    from backend.models import Catalogue

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_ID_FORM = "Use at most 100 lowercase letters, digits, dots, dashes and underscores, starting with a letter or digit."


@dataclass(frozen=True)
class Addition:
    """An entry to download or use, and whether it is new."""

    entry: Entry
    new: bool


def add(
    catalogue: Catalogue, text: str, id_: str | None = None, task: str | None = None, *, anywhere: bool = False
) -> Addition:
    """Return the entry of an id, an address, a file on Hugging Face or a path; a new one is added permanently.

    `anywhere` allows paths outside the model folders. Raises Validation, UnknownModel, ModelBroken, DiskFull.
    """
    if id_ is not None and (is_reserved_windows_name(id_) or not _ID.fullmatch(id_)):
        raise Validation(f"{id_[:100]!r} is not a valid model id.", _ID_FORM)
    if task is not None and task not in get_args(Task):
        raise Validation(f"Unknown task {task[:50]!r}.", f"Tasks: {', '.join(get_args(Task))}.")
    entries = catalogue.entries()
    if text in entries:
        return _known(entries[text], id_, task)
    source = parse(text) or _local(catalogue, text, anywhere)
    if source.kind in STORES:
        source = _stored(catalogue, source)
    for entry in entries.values():
        same = (entry.source and entry.source.asked == source.asked) or (
            source.path and source.path == str(entry.target)
        )
        if same and id_ in (None, entry.id) and task in (None, entry.task):
            return Addition(entry, new=False)
    if id_ in entries:
        raise Validation(f"Another model has the id {id_}.", "Choose another id, or leave it out.")
    _check_task(source, task)
    taken = {*entries, *catalogue.ids.paths()}
    return Addition(catalogue.added.put(id_ or _free_id(source, taken), source, task), new=True)


def remove(catalogue: Catalogue, id_: str) -> None:
    """Remove a model's file if Touchstone downloaded it, and the entry if a user added it.

    Raises UnknownModel, Validation, JobActive while another program downloads it, ModelNotDownloaded.
    """
    entries = catalogue.entries()
    if id_ not in entries:
        raise UnknownModel(f"Unknown model {id_[:200]!r}.", "GET /api/models lists them.", valid=list(entries))
    entry = entries[id_]
    catalogue.check_removable(entry)
    if entry.source and entry.source.kind in ("path", *STORES):
        catalogue.added.drop(id_)  # the file is the user's, or another program's
        return
    if entry.source and entry.source.kind == "hf":
        if id_ not in catalogue.added.entries():
            raise ModelNotDownloaded(
                f"{entry.name} is not on this machine.", f"`{command('models')}` lists the downloaded models."
            )
        needed = [other.target for other in entries.values() if other.id != id_]
        hub_cache.drop(entry.source, needed, catalogue.environ)
        drop_forms(id_, catalogue.added.file.parent)
        catalogue.added.drop(id_)
        return
    workspace = entry.target.parent / NAME
    workspace.mkdir(parents=True, exist_ok=True)
    lock = lock_for(workspace, entry.target.name)
    if not lock.acquire():
        raise JobActive(f"Another program is downloading {id_}.", "Wait for it or stop it, then remove the model.")
    try:
        files = _files(entry)
        kept = [part_for(workspace, file.name) for file in files]
        came = any(path.exists() for path in (*kept, *files))
        for part, file in zip(kept, files, strict=True):
            shutil.rmtree(part, ignore_errors=True)
            try:
                _remove(file)
            except OSError as error:
                raise Configuration(
                    f"{file} cannot be removed: {error.strerror}.", "Close programs that use it, or remove it by hand."
                ) from error
    finally:
        lock.release()
    drop_forms(id_, catalogue.added.file.parent)
    if id_ in catalogue.added.entries():
        catalogue.added.drop(id_)
    elif not came:
        raise ModelNotDownloaded(
            f"{entry.name} is not on this machine.", f"`{command('models')}` lists the downloaded models."
        )


def forget_if_nothing_came(catalogue: Catalogue, addition: Addition) -> None:
    """Undo an addition whose first download left no data to resume from."""
    entry = addition.entry
    if not addition.new or entry.id not in (added := catalogue.added.entries()):
        return
    source = added[entry.id].source
    if source and source.kind == "hf":
        came = source.path is not None or hub_cache.has_parts(source, catalogue.environ)
    else:
        came = any(file.exists() or part_for(file.parent / NAME, file.name).exists() for file in _files(entry))
    if not came:
        catalogue.added.drop(entry.id)


def settle(catalogue: Catalogue, entry: Entry, came: Mapping[str, Any]) -> None:
    """Store where a downloaded model of Hugging Face is, and what was downloaded. Raises Configuration, DiskFull."""
    if entry.source is None or entry.source.kind != "hf":
        return
    before = entry.source.downloaded_files or [] if entry.source.commit == came["commit"] else []
    downloaded_files = sorted({*before, *came["brought"]})
    there = replace(
        entry.source,
        path=came["path"],
        commit=came["commit"],
        downloaded_files=downloaded_files,
        licence=came["licence"],
    )
    if catalogue.is_shipped(entry.id):
        catalogue.added.put(entry.id, there, entry.task)
    else:
        catalogue.added.note(entry.id, there)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _files(entry: Entry) -> list[Path]:
    """Return the model's file, or all parts of a split model, existing or not."""
    if entry.source is None or entry.source.url is None:
        return parts(entry.target) or [entry.target]
    return [entry.target.with_name(name) for name in part_names(entry.target.name)]


def _local(catalogue: Catalogue, text: str, anywhere: bool) -> Source:
    """Return the source of an existing file, if it is a model."""
    path = catalogue.path_named(text, anywhere)
    if not is_there(path):
        raise catalogue.no_file(text)
    refused = check(entry_for("new", path, None, None), path.stat().st_size)
    if isinstance(refused, ModelBroken):  # an unsupported but complete model can be converted
        raise refused
    return Source("path", path=str(path))


def _stored(catalogue: Catalogue, source: Source) -> Source:
    """Return the source of a model in another program's store, with its files. Raises UnknownModel, ModelBroken."""
    model = find_stored(source.kind, str(source.member), catalogue.environ)
    assert model.path, "a model without a file is refused"
    refused = check(entry_for("new", model.path, None, None), model.path.stat().st_size)
    if isinstance(refused, ModelBroken):
        raise ModelBroken(f"{model.source}: {refused.detail}", refused.remedy)
    return replace(
        source,
        member=model.name,
        path=str(model.path),
        projector=str(model.projector) if model.projector else None,
        notices=list(model.notices) or None,
    )


def _known(entry: Entry, id_: str | None, task: str | None) -> Addition:
    if id_ not in (None, entry.id) or task not in (None, entry.task):
        raise Validation(
            f"{entry.id} is in the catalogue; its id and its task ({entry.task}) are fixed.",
            "Leave `id` and `task` out.",
        )
    return Addition(entry, new=False)


def _check_task(source: Source, task: str | None) -> None:
    suffix = Path(source.file_name).suffix.lower()
    served = {each for engine in engines().values() if suffix in engine.suffixes for each in engine.tasks}
    if task is not None and served and task not in served:
        raise Validation(f"No engine runs {suffix} models for the task {task}.", f"Tasks: {', '.join(sorted(served))}.")


def _free_id(source: Source, taken: Collection[str]) -> str:
    stem = slug(Path(source.file_name))[:90].lstrip("._-") or "model"
    id_, number = stem, 2
    while id_ in taken:
        id_, number = f"{stem}-{number}", number + 1
    return id_
