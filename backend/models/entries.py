"""Entries of the catalogue: those that Touchstone ships, those of the configuration, and any file by its path."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from backend.common.config.settings import Settings
from backend.common.config.settings.schema import OwnModel
from backend.common.errors import Configuration, ModelBroken, unicode
from backend.common.files import is_reserved_windows_name
from backend.common.formats.gguf import read_header
from backend.engines import Engine, engines, serves
from backend.models.sources import Source
from backend.tasks.songs.adapter import ENGINE as ADAPTER
from backend.tasks.songs.adapter import read_adapter
from backend.tasks.songs.model_kinds import KINDS, SONGS, SongKind, declared, kind_of

DATA = Path(__file__).with_name("models.yaml")
BACKEND = Path(__file__).parents[1]
BUILT_IN = "built-in"
SERVED_BY = {"lyrics": "text"}  # text models serve lyrics too
HUB = ".hub"  # stands for the cache of Hugging Face until a model lies there; nothing is ever in it


@dataclass(frozen=True)
class Entry:
    """A model as the service works with it. `path` is None until there is a file at `target`."""

    id: str
    name: str
    task: str
    engines: tuple[str, ...]
    target: Path
    size_bytes: int | None = None
    sha256: str | None = None
    licence: str | None = None
    source: Source | None = None
    refusal: ModelBroken | None = None  # set where the file must not be used, whatever is in it
    forms: Mapping[str, Path] = field(default_factory=dict)  # by engine, where that is not `target`
    model_class: str | None = None  # what a folder that is not here yet will declare itself
    facts: Mapping[str, Any] = field(default_factory=dict)  # what is known of it before it is here
    runtime: str | None = None  # the one that it runs in, where not every one with its engine will do

    @property
    def tasks(self) -> tuple[str, ...]:
        """Its task, and those that models of this task serve too."""
        known = {task for name in self.engines for task in engines()[name].tasks}
        return self.task, *(task for task, by in SERVED_BY.items() if by == self.task and task in known)

    @property
    def path(self) -> Path | None:
        """The file or folder, None if it is not here."""
        return self.target if self.target.exists() else None

    @property
    def song(self) -> SongKind | None:
        """What it takes, if it is a model that makes sound itself."""
        if ADAPTER in self.engines:
            with contextlib.suppress(ModelBroken):
                return read_adapter(self.target).kind
            return None
        return kind_of(self.target) or KINDS.get(self.model_class or "")

    def options_for(self, task: str) -> str:
        """Which options a job has: the task's, or those of songs."""
        return SONGS if task == "music" and self.song else task

    def path_for(self, engine: str | None) -> Path:
        """What an engine loads."""
        return self.forms.get(engine or "", self.target)


def shipped(models_dir: Path) -> dict[str, Entry]:
    """The models of models.yaml."""
    data: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    entries = {}
    for id_, facts in data.items():
        rest = {key: value for key, value in facts.items() if key not in ("file", "built_in", "source", "engines")}
        folder = facts.get("built_in")
        entries[id_] = Entry(
            id=id_,
            engines=tuple(facts["engines"]),
            target=BACKEND / folder if folder else _place(id_, facts, models_dir),
            source=Source(**facts["source"]),
            **rest,
        )
    return entries


def _place(id_: str, facts: Mapping[str, Any], models_dir: Path) -> Path:
    """Where its file will lie; what comes from Hugging Face lies in the cache of that, once it is here."""
    return models_dir / (Path(facts["file"]).name if "file" in facts else f"{HUB}/{id_}")


def own(settings: Settings) -> dict[str, Entry]:
    """The models of the configuration. Raises Configuration for an engine that does not exist."""
    for id_, own in settings.models.items():
        if own.engine is not None and own.engine not in engines():
            near = difflib.get_close_matches(own.engine, engines(), 1, 0.4)
            raise Configuration(
                f"`models.{id_}.engine` is {own.engine}, which this version does not have.",
                f"Did you mean {near[0]}?" if near else f"Engines: {', '.join(engines())}. Or leave the line out.",
            )
        _check_runtime(settings, id_, own)
    entries = {id_: entry_for(id_, own.path, own.task, own.engine) for id_, own in settings.models.items()}
    return {id_: _adapted(entry, settings.models[id_].runtime) for id_, entry in entries.items()}


def _check_runtime(settings: Settings, id_: str, own: OwnModel) -> None:
    """An adapter is a program: it names whose environment runs it, and no other model does. Raises Configuration."""
    if own.engine != ADAPTER:
        if own.runtime is not None:
            raise Configuration(f"`models.{id_}.runtime` is for the engine {ADAPTER} alone.", "Leave the line out.")
        return
    rules = settings.runtimes.get(own.runtime or "")
    if own.runtime is None or rules is None or rules.python is None or not serves(engines()[ADAPTER], own.runtime):
        raise Configuration(
            f"`models.{id_}` is an adapter, and its `runtime` ({own.runtime or 'not named'}) is no environment of your "
            "own under a name of its own.",
            f"Name one: `runtimes: {{{id_}-env: {{python: PATH}}}}`, and `runtime: {id_}-env` for the model.",
        )


def _adapted(entry: Entry, runtime: str | None) -> Entry:
    if runtime is None:
        return entry
    with contextlib.suppress(ModelBroken):
        adapter = read_adapter(entry.target)
        return replace(entry, runtime=runtime, name=adapter.kind.title, licence=adapter.licence)
    return replace(entry, runtime=runtime)


def entry_for(id_: str, path: Path, task: str | None, engine: str | None) -> Entry:
    """The entry of a file; what is not named is taken from the first engine that reads such files."""
    fitting = readers(path)
    chosen = [engines()[engine]] if engine else fitting
    return Entry(
        id_, unicode(path.stem) or id_, task or _task_of(path, chosen), tuple(fact.name for fact in chosen), path
    )


def _task_of(path: Path, chosen: list[Engine]) -> str:
    """What a file is for: embeddings where it says so itself, else the first task of its engine."""
    if path.suffix.lower() == ".gguf":
        with contextlib.suppress(ModelBroken):
            if read_header(path).makes_embeddings:
                return "embeddings"
    if path.suffix.lower() == ".onnx":
        return "onnx"
    if not chosen:
        return "text"
    others = (task for task, kinds in chosen[0].other_files.items() if any(_all_there(path, files) for files in kinds))
    return next(others, chosen[0].tasks[0])


def readers(path: Path) -> list[Engine]:
    """The engines that read a file with this ending, a folder with these files, or the class that it declares."""
    named = declared(path)
    if named and (own := [engine for engine in engines().values() if named in engine.classes]):
        return own
    return [
        engine
        for engine in engines().values()
        if path.suffix.lower() in engine.suffixes
        or not engine.classes
        and any(files and _all_there(path, files) for files in (engine.files, *sum(engine.other_files.values(), ())))
    ]


def _all_there(folder: Path, files: tuple[str, ...]) -> bool:
    return all(any(folder.glob(file)) for file in files)


def slug(path: Path) -> str:
    """An id made from a file's name."""
    made = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-.") or "model"
    return f"model-{made}" if is_reserved_windows_name(made) else made  # its files will be named by it


def suffixes() -> set[str]:
    """The endings of the files that the engines of this version read."""
    return {suffix for fact in engines().values() for suffix in fact.suffixes}
