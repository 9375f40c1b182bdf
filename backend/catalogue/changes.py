"""Adding models to the catalogue and removing them, with all that speaks against it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from backend.catalogue.entries import BUILT_IN, Entry, entry_for, slug
from backend.catalogue.files import FETCHABLE, check, is_there
from backend.catalogue.forms import drop_forms
from backend.catalogue.sources import Source, parse
from backend.child.workspace import NAME, lock_for, part_for
from backend.engines import engines
from backend.errors import Configuration, JobActive, ModelNotDownloaded, UnknownModel, Validation
from backend.settings.schema import Task

if TYPE_CHECKING:
    from backend.catalogue import Catalogue

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_ID_FORM = "Ids have small letters, digits, dots, dashes and underscores, begin with a letter or digit, at most 100."


@dataclass(frozen=True)
class Addition:
    """An entry to fetch or use, and whether it is new."""

    entry: Entry
    new: bool


def add(
    catalogue: Catalogue, text: str, id_: str | None = None, task: str | None = None, *, anywhere: bool = False
) -> Addition:
    """The entry of an id, an address, a file on Hugging Face or a path; a new one is registered for good.

    `anywhere` allows paths outside the model folders. Raises Validation, UnknownModel, ModelBroken, DiskFull.
    """
    if id_ is not None and not _ID.fullmatch(id_):
        raise Validation(f"{id_[:100]!r} cannot be the id of a model.", _ID_FORM)
    if task is not None and task not in get_args(Task):
        raise Validation(f"There is no task {task[:50]!r}.", f"Tasks: {', '.join(get_args(Task))}.")
    entries = catalogue.entries()
    if text in entries:
        return _known(entries[text], id_, task)
    source = parse(text) or _local(catalogue, text, anywhere)
    for entry in entries.values():
        same = entry.source == source or source.path == str(entry.target)
        if same and id_ in (None, entry.id) and task in (None, entry.task):
            return Addition(entry, new=False)
    if id_ in entries:
        raise Validation(f"The id {id_} is taken by another model.", "Choose another id, or leave it out.")
    _check_task(source, task)
    return Addition(catalogue.added.put(id_ or _free_id(source, entries), source, task), new=True)


def remove(catalogue: Catalogue, id_: str) -> None:
    """Removes a model's file where Touchstone brought it, and forgets the model where a person added it.

    Raises UnknownModel, Validation with the reason, JobActive while another program fetches it, ModelNotDownloaded.
    """
    entries = catalogue.entries()
    if id_ not in entries:
        raise UnknownModel(f"There is no model {id_[:200]!r}.", "GET /api/models lists them.", valid=list(entries))
    entry = entries[id_]
    _check_removable(catalogue, entry)
    if entry.source and entry.source.kind == "path":
        catalogue.added.drop(id_)  # the file was there before us
        return
    workspace = entry.target.parent / NAME
    workspace.mkdir(parents=True, exist_ok=True)
    lock = lock_for(workspace, entry.target.name)
    if not lock.acquire():
        raise JobActive(f"Another program is fetching {id_}.", "Wait for it or stop it, then remove the model.")
    try:
        part = part_for(workspace, entry.target.name)
        came = part.exists() or entry.target.exists()
        shutil.rmtree(part, ignore_errors=True)
        try:
            entry.target.unlink(missing_ok=True)
        except OSError as error:
            raise Configuration(
                f"{entry.target} cannot be removed: {error.strerror}.", "Close what uses it, or remove it by hand."
            ) from error
    finally:
        lock.release()
    drop_forms(id_, catalogue.added.file.parent)
    if id_ in catalogue.added.entries():
        catalogue.added.drop(id_)
    elif not came:
        raise ModelNotDownloaded(f"{entry.name} is not on this machine.", "There is nothing to remove.")


def forget_if_nothing_came(catalogue: Catalogue, addition: Addition) -> None:
    """Undoes an addition whose very first download brought nothing that another could go on with."""
    entry = addition.entry
    part = part_for(entry.target.parent / NAME, entry.target.name)
    if addition.new and not entry.target.exists() and not part.exists():
        catalogue.added.drop(entry.id)


def _local(catalogue: Catalogue, text: str, anywhere: bool) -> Source:
    """A file that is here already, and is a model."""
    path = catalogue.path_named(text, anywhere)
    if not is_there(path):
        raise catalogue.no_file(text)
    if broken := check(entry_for("new", path, None, None), path.stat().st_size):
        raise broken
    return Source("path", path=str(path))


def _known(entry: Entry, id_: str | None, task: str | None) -> Addition:
    if id_ not in (None, entry.id) or task not in (None, entry.task):
        raise Validation(
            f"{entry.id} is a model of the catalogue; its id and its task ({entry.task}) are fixed.",
            "Leave `id` and `task` out.",
        )
    return Addition(entry, new=False)


def _check_task(source: Source, task: str | None) -> None:
    suffix = Path(source.file_name).suffix.lower()
    served = {each for engine in engines().values() if suffix in engine.suffixes for each in engine.tasks}
    if task is not None and served and task not in served:
        raise Validation(f"No engine runs {suffix} models for the task {task}.", f"Tasks: {', '.join(sorted(served))}.")


def _free_id(source: Source, taken: Mapping[str, Entry]) -> str:
    stem = slug(Path(source.file_name))[:90].lstrip("._-") or "model"
    id_, number = stem, 2
    while id_ in taken:
        id_, number = f"{stem}-{number}", number + 1
    return id_


def _check_removable(catalogue: Catalogue, entry: Entry) -> None:
    if catalogue.is_own(entry.id):
        raise Validation(
            f"{entry.id} stands in the configuration, which only you change.",
            f"Remove `models.{entry.id}` there; the file stays yours.",
        )
    if entry.source and entry.source.kind == BUILT_IN:
        raise Validation(f"{entry.id} is a part of Touchstone itself.", "It takes no room beside it; leave it there.")
    added = entry.id in catalogue.added.entries()
    if added and catalogue.is_default(entry.id):
        raise Validation(
            f"{entry.id} is a default model of the configuration; without it the server would not start.",
            "Name another under `default_models` first.",
        )
    if not added and not (entry.source and entry.source.kind in FETCHABLE) and not catalogue.in_own_folder(entry):
        raise Validation(
            f"{entry.target} lies in a folder that is not Touchstone's own.", "Remove the file there yourself."
        )
