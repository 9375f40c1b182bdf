"""The model catalogue: the shipped models, those of the user, and the files in model folders."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from backend.child.convert import FOLDER
from backend.common.bounded_reads import NoAnswer, bounded_read, silent_folder
from backend.common.clean_text import clean, encodable
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.config.settings.schema import LoraFile, with_home
from backend.common.errors import (
    Configuration,
    ModelBroken,
    ModelIncompatible,
    ModelNotDownloaded,
    TouchstoneError,
    UnknownModel,
    Validation,
)
from backend.common.formats.gguf import first_part
from backend.common.formats.safetensors import FETCH
from backend.common.types import Importable, ImportableModel, JsonObject, Model, ModelState, ModelStore, SkippedPath
from backend.models.converted_forms import with_forms
from backend.models.details import details, licence, notices_of
from backend.models.entries import (
    BUILT_IN,
    SERVED_BY,
    Entry,
    configured_models,
    entry_for,
    shipped,
    suffixes,
    with_adapters,
)
from backend.models.file_checks import FETCHABLE, absent, check, file_bytes, is_there, stamp_of, stamp_of_file
from backend.models.folders import READ_S, Folders
from backend.models.model_ids import ModelIds, legacy_slug
from backend.models.sources import Source
from backend.models.stamps import Stamp, stamps_of
from backend.models.stores import StoredModel, list_stores
from backend.models.user_models import UserModels
from backend.tasks.options.songs import song_schema

log = logging.getLogger(__name__)

__all__ = ["Catalogue", "Entry", "Source"]

CHECK_S = 4.0  # timeout of the check of a model's files before a job: a slow disk may need more than a list waits
_Stamp = tuple[object, ...]
_Files = tuple[Path, tuple[LoraFile, ...]]  # a model and its adapters


_NEAR = 0.6  # similarity of a name to one that is suggested for it


class Catalogue:
    """All models and the state of their files. Files are parsed again only if they changed, so calls are cheap."""

    def __init__(
        self,
        settings: Settings,
        schema_for: Callable[[str], JsonObject] = lambda task: {},
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._schema_for = cache(schema_for)  # hundreds of models share one schema: nothing may change it
        self.environ = environ
        self._folders = Folders(settings, environ)
        self._forms_dir = settings.models_dir / FOLDER  # missing until a model is converted
        self._own = configured_models(settings)
        self._based = {id_: rules for id_, rules in settings.models.items() if rules.base}  # with adapters
        self._shipped = shipped(settings.models_dir)
        self._known = {**self._shipped, **self._own}
        self.added = UserModels(settings.models_dir, environ)
        self.ids = ModelIds(settings.models_dir)
        self._aliases: dict[str, str] = {}  # earlier ids of files, by which they are found too
        self._checked: dict[
            tuple[Path, tuple[LoraFile, ...]],
            tuple[_Stamp, ModelBroken | ModelIncompatible | ModelNotDownloaded | None],
        ] = {}
        self._file_entries: dict[Path, tuple[Stamp, Entry]] = {}
        self._known_models: dict[str, tuple[tuple[object, ...], Model]] = {}
        self.downloading: set[str] = set()
        self._unreadable: set[str] = set()  # models whose exception was logged
        self._check_defaults()

    def entries(self) -> dict[str, Entry]:
        """Return all models by id."""
        entries = {**self._known, **{id_: _without_base(id_, str(rules.base)) for id_, rules in self._based.items()}}
        for id_, entry in self.added.entries().items():
            entries[id_] = _downloaded(entries[id_], entry) if id_ in entries else entry
        taken = {entry.target for entry in entries.values() if not entry.adapters}
        files = [file for file in self._folders.model_files() if file not in taken]
        stamps = stamps_of(files, READ_S)
        self._file_entries = {file: known for file, known in list(self._file_entries.items()) if file in stamps}
        self.ids.store(files, entries.__contains__)
        for file in files:
            entry = self._entry_of_listed(file, stamps.get(file), entries)
            entries[entry.id] = entry
        self._aliases = self._find_aliases(entries, files)
        for id_, rules in self._based.items():
            base = entries.get(str(rules.base)) or entries.get(self._aliases.get(str(rules.base), ""))
            if base is not None and base.id not in self._based:
                entries[id_] = with_adapters(base, id_, rules.adapters)
        with contextlib.suppress(NoAnswer):
            return bounded_read(self._forms_dir, lambda: self._with_forms(entries), READ_S)
        return entries

    def _with_forms(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        if not self._forms_dir.is_dir():
            return entries
        return {id_: with_forms(entry, self._settings.models_dir) for id_, entry in entries.items()}

    def _find(self, id_: str) -> Entry | None:
        """Return the entry that `entries` has under an id. Folders are not read for a known or added model."""
        entry = self._known.get(id_)
        if (entry is None or _is_downloaded_later(entry)) and (added := self.added.entries().get(id_)):
            entry = _downloaded(entry, added) if entry else added
        if entry is None:
            entries = self.entries()
            return entries.get(id_) or entries.get(self._aliases.get(id_, ""))
        with contextlib.suppress(NoAnswer):
            return bounded_read(self._forms_dir, lambda: self._with_forms({id_: entry}), READ_S)[id_]
        return entry

    def _find_aliases(self, entries: Mapping[str, Entry], files: Sequence[Path]) -> dict[str, str]:
        """Return further ids of models: those before the configuration named the file, and those of older versions."""
        by_path = {entry.target: entry.id for entry in entries.values() if not entry.adapters}
        aliases = {id_: by_path[path] for id_, path in self.ids.paths().items() if path in by_path}
        legacy = set(self._known) | set(self.added.entries())
        for file in files:
            id_ = legacy_id = legacy_slug(file)
            number = 2
            while id_ in legacy:
                id_, number = f"{legacy_id}-{number}", number + 1
            legacy.add(id_)
            aliases.setdefault(id_, by_path[file])
        return {id_: canonical for id_, canonical in aliases.items() if id_ not in entries}

    def models(self) -> list[Model]:
        """Return all models as the API shows them."""
        return [model for model, _ in self.models_with_entries()]

    def models_with_entries(self) -> list[tuple[Model, Entry]]:
        """Return all models with their entries. Only files that changed since the last call are read."""
        entries = self.entries()
        stamps = stamps_of((entry.target for entry in entries.values()), READ_S)
        self._known_models = {id_: known for id_, known in list(self._known_models.items()) if id_ in entries}
        return [(self._model_of_listed(entry, stamps.get(entry.target)), entry) for entry in entries.values()]

    def _model_of_listed(self, entry: Entry, stamp: Stamp | None) -> Model:
        """Return a model, without reading its file if that has the stamp of the last call."""
        if stamp is None or entry.forms or entry.adapters:
            return self.model(entry)
        state = (entry, stamp, entry.id in self.downloading, self.is_default(entry.id))
        known = self._known_models.get(entry.id)
        if known and known[0] == state:
            return known[1]
        model = self.model(entry)
        if model.state != "broken":  # a disk that did not answer may do so the next time
            self._known_models[entry.id] = state, model
        return model

    def model(self, entry: Entry) -> Model:
        """Return a model as the API shows it, with the current state of its file. Log a model that cannot be read."""
        try:
            return bounded_read(entry.target, lambda: self._model(entry), READ_S)
        except NoAnswer as error:
            reason, remedy = silent_folder(entry.target, error)
            return Model(entry.id, entry.name, entry.task, [], "broken", reason=clean(reason), remedy=remedy)
        except Exception as error:  # noqa: BLE001 (whatever the content of its files, the other models are listed)
            if entry.id not in self._unreadable:
                self._unreadable.add(entry.id)
                log.warning("model not readable", exc_info=error, extra={"model": entry.id})
            reason = f"Its files have unexpected content ({type(error).__name__}: {error})."[:400]
            return Model(entry.id, entry.name, entry.task, [], "broken", reason=clean(reason), remedy=FETCH)

    def _model(self, entry: Entry) -> Model:
        problem = self._problem(entry)
        state: ModelState = "ready"
        if entry.id in self.downloading:
            state, problem = "downloading", ModelNotDownloaded("It is being downloaded.", "Wait for the download.")
        elif isinstance(problem, ModelNotDownloaded):
            state = "downloadable"
        elif problem:
            state = "broken"
        facts = details(entry) if problem is None or isinstance(problem, ModelIncompatible) else {}
        return Model(
            id=entry.id,
            name=entry.name,
            task=entry.task,
            engines=list(entry.engines),
            state=state,
            parameters=facts.get("parameters") or entry.facts.get("parameters"),
            quantization=facts.get("quantisation") or entry.facts.get("quantization"),
            context_length=facts.get("context_tokens") or entry.facts.get("context_tokens"),
            bytes=file_bytes(entry.target) or entry.size_bytes or entry.facts.get("listed_bytes"),
            licence=entry.licence or licence(entry.target),
            source=encodable(str(entry.source or entry.target)),
            reason=problem.detail if problem else None,
            remedy=problem.remedy if problem else None,
            default=self.is_default(entry.id),
            options_schema=self._schema(entry, entry.task),
            # Dozens of models can be downloaded: theirs would be most of the answer.
            options_schemas={}
            if state == "downloadable"
            else {each: self._schema(entry, each) for each in entry.tasks},
            tasks=list(entry.tasks),
            details={
                **entry.facts,
                **_adapter_facts(entry),
                **({"sounds": sorted(song.sounds)} if (song := entry.song) and song.sounds else {}),
                **facts,
            },
            removable=self._is_removable(entry),
            notices=[*notices_of(facts), *(entry.source.notices or [] if entry.source else [])]
            if problem is None
            else [],
        )

    def importable(self) -> Importable:
        """Return the models of other programs on this machine, which can be added and used in place."""
        listing = list_stores(self.environ)
        known = {str(entry.target): entry.id for entry in self.entries().values()}
        models = [self._importable(stored, known.get(str(stored.path))) for stored in listing.models]
        stores = [ModelStore(store.program, str(store.path), store.models, store.reason) for store in listing.stores]
        skipped = [SkippedPath(*each) for each in self.notices()]
        return Importable(models, stores, skipped)

    def _importable(self, stored: StoredModel, id_: str | None) -> ImportableModel:
        if stored.path is None:
            return ImportableModel(stored.source, stored.program, "broken", reason=stored.reason, remedy=stored.remedy)
        model = self.model(entry_for(id_ or "new", stored.path, None, None))
        return ImportableModel(
            stored.source,
            stored.program,
            "ready" if model.state == "ready" else "broken",
            path=encodable(str(stored.path)),
            bytes=model.bytes,
            task=model.task,
            engines=model.engines,
            architecture=model.details.get("architecture"),
            quantisation=model.details.get("quantisation"),
            reason=model.reason,
            remedy=model.remedy,
            notices=[*model.notices, *stored.notices],
            id=id_,
        )

    def _schema(self, entry: Entry, task: str) -> JsonObject:
        """Return the schema of a task. Models that can be downloaded have one only: dozens fill most of the answer."""
        return song_schema(entry.song) if entry.song else self._schema_for(task)

    def resolve(self, name: str, *, anywhere: bool = False, task: str | None = None) -> Entry:
        """Return the entry of a model id, or of a path in the model folders (with `anywhere`, of any path).

        For an unknown name a model of the `task` is suggested. Optional, default: of any task.
        Raises UnknownModel, whose member `valid` lists the ids, or Validation for a path that is not allowed.
        """
        if entry := self._find(name):
            return entry
        if "/" in name or "\\" in name or Path(name).suffix.lower() in suffixes():
            return self._resolve_path(name, anywhere)
        entries = self.entries()
        known = [id_ for id_, entry in entries.items() if task is None or task in entry.tasks]
        near = difflib.get_close_matches(name.lower(), known, 1, _NEAR)
        raise UnknownModel(
            f"Unknown model {name[:200]!r}.",
            f"Did you mean {near[0]}?" if near else f"`{command('models')}` and /api/models list all models.",
            valid=list(entries),
        )

    def default_for(self, task: str) -> Entry:
        """Return the model that a task uses by default: that of the settings, or the first shipped one for it.

        Raises UnknownModel.
        """
        served = SERVED_BY.get(task, task)
        first = next((entry.id for entry in self._shipped.values() if entry.task == served), None)
        id_ = getattr(self._settings.default_models, served, first)
        if id_ is None:
            valid = [entry.id for entry in self.entries().values() if entry.task == served]
            raise UnknownModel(f"The task {task} has no default model.", "Name a model in the request.", valid=valid)
        return self.resolve(str(id_))

    def path_of(self, entry: Entry) -> Path:
        """Return the model's file, validated. Raises ModelNotDownloaded or ModelBroken."""
        if problem := self._problem(entry):
            raise type(problem)(problem.detail, problem.remedy)  # a new one: the cached one would collect tracebacks
        return entry.target

    def source_of(self, entry: Entry) -> Path:
        """Return the file that converted forms are made of, supported by an engine or not. Raises like `path_of`."""
        try:
            return self.path_of(entry)
        except ModelIncompatible:
            return entry.target

    def is_default(self, id_: str) -> bool:
        """Return whether the model is a default model."""
        named = (self._settings.default_models.text, self._settings.default_models.music)
        return id_ in named or id_ in [self._aliases.get(name) for name in named if name]

    def shipped_entries(self) -> list[Entry]:
        """Return the models of the shipped catalogue, downloaded or not."""
        return list(self._shipped.values())

    def is_shipped(self, id_: str) -> bool:
        """Return whether the model is in the shipped catalogue."""
        return id_ in self._shipped

    def is_own(self, id_: str) -> bool:
        """Return whether the configuration names the model."""
        return id_ in self._own or id_ in self._based

    def in_own_folder(self, entry: Entry) -> bool:
        """Return whether its file is in the download folder, or in a folder below."""
        return self._settings.models_dir in entry.target.parents

    def check_removable(self, entry: Entry) -> None:
        """Raise Validation for a model that Touchstone does not manage."""
        if self.is_own(entry.id):
            raise Validation(
                f"{entry.id} is configured in config.yaml, which Touchstone does not change.",
                f"Remove `models.{entry.id}` there; the file is kept.",
            )
        if entry.source and entry.source.kind == BUILT_IN:
            raise Validation(f"{entry.id} is a part of Touchstone itself.", "Keep it; it takes no extra disk space.")
        is_added = entry.id in self.added.entries()
        if is_added and self.is_default(entry.id):
            raise Validation(
                f"{entry.id} is a default model in config.yaml; without it the server does not start.",
                "Set another one under `default_models` first.",
            )
        is_fetched = entry.source is not None and entry.source.kind in FETCHABLE
        if not is_added and not is_fetched and not self.in_own_folder(entry):
            raise Validation(f"{entry.target} is in a folder that Touchstone does not manage.", "Remove it by hand.")

    def _is_removable(self, entry: Entry) -> bool:
        """Return whether something of the model is here, and Touchstone manages it."""
        try:
            self.check_removable(entry)
        except Validation:
            return False
        return entry.id in self.added.entries() or is_there(entry.target) or entry.target.is_symlink()

    def silent_folders(self) -> list[Path]:
        """Return the model folders that did not answer at the last listing."""
        return self._folders.silent()

    def notices(self) -> list[tuple[str, str, str]]:
        """Return what is left out of the model folders: path, detail, remedy."""
        return [(encodable(str(path)), reason, remedy) for path, reason, remedy in self._folders.skipped()]

    def _check_defaults(self) -> None:
        for task, id_ in (("text", self._settings.default_models.text), ("music", self._settings.default_models.music)):
            if id_ is not None and id_ not in (entries := self.entries()) and id_ not in self._aliases:
                near = difflib.get_close_matches(id_, entries, 1, 0.5) or list(entries)[:1]
                raise Configuration(
                    f"`default_models.{task}` is {id_}, which does not exist.",
                    f"Did you mean {near[0]}? Or add {id_} under `models:`.",
                )

    def _problem(self, entry: Entry) -> TouchstoneError | None:
        """Return why the model cannot be used now, or None."""
        if entry.refusal:
            return entry.refusal
        try:
            return bounded_read(entry.target, lambda: self._file_problem(entry), CHECK_S)
        except NoAnswer as error:
            return ModelBroken(*silent_folder(entry.target, error))

    def _file_problem(self, entry: Entry) -> TouchstoneError | None:
        try:
            files = stamp_of(entry.target)
            files += tuple(stamp_of_file(adapter.path) for adapter in entry.adapters)
        except (OSError, ValueError) as error:
            return absent(entry, error)
        stamp: _Stamp = (*files, entry.engines)
        checked = self._checked.get((entry.target, entry.adapters))
        if checked is None or checked[0] != stamp:
            size_bytes, *_ = files[0]
            self._checked[entry.target, entry.adapters] = checked = (stamp, check(entry, size_bytes))
        return checked[1]

    def _entry_of_listed(self, file: Path, stamp: Stamp | None, taken: Mapping[str, Entry]) -> Entry:
        """Return the entry of a file, without reading the file if it has the stamp of the last call."""
        known = self._file_entries.get(file)
        if known and stamp and known[0] == stamp and known[1].id not in taken:
            return known[1]
        entry = self._entry_of_file(file, taken)
        if stamp:
            self._file_entries[file] = stamp, entry
        return entry

    def _entry_of_file(self, file: Path, taken: Mapping[str, Entry]) -> Entry:
        entry = self._entry_for_path(file, taken)
        if self._folders.hold(file):
            return entry
        refusal = ModelBroken(
            f"{file} is a link to a path outside the model folders.",
            "Add its folder to `model_folders`, or the file to `models:` in config.yaml.",
        )
        return replace(entry, refusal=refusal)

    def _entry_for_path(self, path: Path, taken: Mapping[str, Entry]) -> Entry:
        """Return an entry under the id of the file."""
        id_ = self.ids.id_of(path, taken.__contains__)
        self._move_forms(legacy_slug(path), id_)
        return entry_for(id_, path, None, None)

    def _move_forms(self, legacy_id: str, id_: str) -> None:
        """Move converted forms that an older version made under another id of the file."""
        old, new = self._forms_dir / legacy_id, self._forms_dir / id_
        if old != new and legacy_id not in self._known and old.is_dir() and not new.exists():
            with contextlib.suppress(OSError):
                old.rename(new)

    def path_named(self, name: str, anywhere: bool) -> Path:
        """Return the path that a caller names, if it is allowed. Raises Validation."""
        if "\0" in name:
            raise Validation("The model's path has a null byte.", "Send an id of /api/models.")
        path = with_home(name) if anywhere else self._settings.models_dir / name
        path = first_part(Path(os.path.abspath(path)))  # noqa: PTH100, since Path.absolute keeps `..`
        if not anywhere and (name[:2].replace("/", "\\") == "\\\\" or not self._folders.hold(path)):
            raise Validation(
                "The model's path is outside the model folders.",
                "Name a model by its id, or add its folder to `model_folders` in config.yaml.",
            )
        return path

    def no_file(self, name: str) -> UnknownModel:
        """Return the error for a path without a file."""
        detail = f"The model file {name[:200]!r} does not exist."
        return UnknownModel(detail, "Correct the path.", valid=list(self.entries()))

    def _resolve_path(self, name: str, anywhere: bool) -> Entry:
        path = self.path_named(name, anywhere)
        for entry in self.entries().values():
            if entry.target == path:
                return entry
        if not is_there(path):
            raise self.no_file(name)
        entry = self._entry_for_path(path, self.entries())
        self._known[entry.id] = entry  # from now on, its id is valid too
        return entry


def _adapter_facts(entry: Entry) -> JsonObject:
    adapters = [{"path": encodable(str(each.path)), "scale": each.scale} for each in entry.adapters]
    return {"adapters": adapters} if adapters else {}


def _without_base(id_: str, base: str) -> Entry:
    """Return the entry of a model with adapters whose base is not known."""
    reason = f"Its base {base} does not exist, or has adapters too."
    refusal = ModelBroken(reason, f"Correct `models.{id_}.base` in config.yaml, or download {base}.")
    return Entry(id_, id_, "text", (), Path(id_), refusal=refusal)


def _is_downloaded_later(entry: Entry) -> bool:
    """Return whether the entry is a shipped model of Hugging Face, whose place is known once it is downloaded."""
    return bool(entry.source and entry.source.kind == "hf")


def _downloaded(known: Entry, added: Entry) -> Entry:
    """Return a known model with the folder of its download, if `added` is that download."""
    return replace(known, target=added.target, source=added.source) if _is_downloaded_later(known) else known
