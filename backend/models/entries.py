"""Entries of the catalogue: the shipped models, those of the configuration, and any model file by its path."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from backend.common.bounded_reads import NoAnswer, bounded_read
from backend.common.clean_text import UNNAMED, clean_name
from backend.common.config.settings import Settings
from backend.common.config.settings.schema import LoraFile, OwnModel
from backend.common.engine_api import BLOB
from backend.common.errors import Configuration, ModelBroken
from backend.common.types import JsonObject
from backend.engines import Engine, engines, model_formats, serves
from backend.models.model_ids import stem_of
from backend.models.sources import Source
from backend.tasks.songs.adapter import read_adapter
from backend.tasks.songs.model_kinds import KINDS, SONGS, SongKind, declared_class, kind_of

DATA = tuple(Path(__file__).with_name(name) for name in ("models.yaml", "text_models.yaml"))
BACKEND = Path(__file__).parents[1]
BUILT_IN = "built-in"
SERVED_BY = {"lyrics": "text"}  # text models also serve lyrics
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is installed
HUB = ".hub"  # placeholder for the cache of Hugging Face until a model is there; this folder never exists


@dataclass(frozen=True)
class Entry:
    """A model as the service works with it."""

    id: str
    name: str
    task: str
    engines: tuple[str, ...]
    target: Path
    size_bytes: int | None = None
    sha256: str | None = None
    licence: str | None = None
    source: Source | None = None
    refusal: ModelBroken | None = None  # set if the file must not be used, whatever its content
    forms: Mapping[str, Path] = field(default_factory=dict)  # by engine, the converted forms that it loads instead
    model_class: str | None = None  # the class that the folder declares once it is downloaded
    facts: Mapping[str, Any] = field(default_factory=dict)  # what is known before the download
    runtime: str | None = None  # the only runtime that it runs in. Default: every runtime of its engine
    adapters: tuple[LoraFile, ...] = ()  # LoRA adapters that are applied to it

    @property
    def tasks(self) -> tuple[str, ...]:
        """Its task, and the further tasks that models of this task serve."""
        served = {task for name in self.engines for task in engines()[name].tasks}
        return self.task, *(task for task, by in SERVED_BY.items() if by == self.task and task in served)

    @property
    def path(self) -> Path | None:
        """Optional. The file or folder; None if it does not exist."""
        return self.target if self.target.exists() else None

    @property
    def song(self) -> SongKind | None:
        """Optional. The options that it takes, if it is a song model."""
        if self.runs_user_code:
            with contextlib.suppress(ModelBroken):
                return read_adapter(self.target).kind
            return None
        return kind_of(self.target) or KINDS.get(self.model_class or "")

    @property
    def runs_user_code(self) -> bool:
        """Whether the model is a program of the user (an adapter)."""
        return any(engines()[name].runs_user_code for name in self.engines)

    def options_for(self, task: str) -> str:
        """Return which options a job has: those of the task, or those of songs."""
        return SONGS if task == "music" and self.song else task

    def path_for(self, engine: str | None) -> Path:
        """Return the path that an engine loads: its converted form, or the model itself."""
        return self.forms.get(engine or "", self.target)


def is_gguf(entry: Entry) -> bool:
    """Return whether a model is a GGUF file, downloaded or not."""
    named = entry.source.member if entry.source and entry.source.kind == "hf" else entry.target.name
    return Path(named or "").suffix.lower() == ".gguf"


def shipped(models_dir: Path) -> dict[str, Entry]:
    """Return the models of the shipped files."""
    entries = {}
    for id_, facts in _shipped_data().items():
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


def shipped_facts(id_: str) -> Mapping[str, Any]:
    """Return the facts of a shipped model; empty for other models."""
    facts: Mapping[str, Any] = _shipped_data().get(id_, {}).get("facts", {})
    return facts


def _shipped_data() -> dict[str, JsonObject]:
    data: dict[str, JsonObject] = {}
    for file in DATA:
        data |= yaml.load(file.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (a safe one)
    return data


def _place(id_: str, facts: Mapping[str, Any], models_dir: Path) -> Path:
    """Return where the model's file will be. A model of Hugging Face is in its cache once it is downloaded."""
    return models_dir / (Path(facts["file"]).name if "file" in facts else f"{HUB}/{id_}")


def configured_models(settings: Settings) -> dict[str, Entry]:
    """Return the models of the configuration. Raises Configuration for an unknown engine."""
    for id_, model in settings.models.items():
        if model.engine is not None and model.engine not in engines():
            near = difflib.get_close_matches(model.engine, engines(), 1, 0.4)
            raise Configuration(
                f"`models.{id_}.engine` is {model.engine}, which does not exist.",
                f"Did you mean {near[0]}?" if near else f"Engines: {', '.join(engines())}. Or remove the line.",
            )
        _check_place(id_, model)
        _check_runtime(settings, id_, model)
    entries = {
        id_: with_adapters(entry_for(id_, model.path, model.task, model.engine), id_, model.adapters)
        for id_, model in settings.models.items()
        if model.path
    }
    return {id_: _with_adapter_facts(entry, settings.models[id_].runtime) for id_, entry in entries.items()}


def with_adapters(entry: Entry, id_: str, adapters: Sequence[LoraFile]) -> Entry:
    """Return the entry of a model with LoRA adapters, under its own id. Only engines that apply them are left."""
    if not adapters:
        return entry
    names = ", ".join(adapter.path.stem for adapter in adapters)
    kinds = {".gguf" if BLOB.fullmatch(each.path.name) else each.path.suffix.lower() for each in adapters}
    chosen = tuple(name for name in entry.engines if kinds <= set(engines()[name].adapter_suffixes))
    refusal = entry.refusal
    if not chosen and entry.engines and refusal is None:
        refusal = ModelBroken(
            f"No engine of this version applies {' or '.join(sorted(kinds))} adapters to {entry.target.name}.",
            "Use a GGUF model with adapters as GGUF: llama.cpp's convert_lora_to_gguf.py makes them of safetensors.",
        )
    return replace(
        entry,
        id=id_,
        name=f"{entry.name} + {names}",
        engines=chosen or entry.engines,
        adapters=tuple(adapters),
        source=None,
        forms={},
        refusal=refusal,
    )


def _check_place(id_: str, model: OwnModel) -> None:
    """Check `path`, `base` and `adapters`. Raises Configuration."""
    if (model.path is None) == (model.base is None):
        raise Configuration(
            f"`models.{id_}` needs either `path` or `base`.",
            "Name a file or folder (`path`), or another model (`base`) with `adapters`.",
        )
    if model.base is not None and not model.adapters:
        raise Configuration(
            f"`models.{id_}` has a `base` but no `adapters`.", "Add `adapters: [{path: ADAPTER.gguf}]`, or name `path`."
        )
    if model.base is not None and (model.task or model.engine):
        raise Configuration(
            f"`models.{id_}` has its task and engine from its base {model.base}.", "Remove `task` and `engine`."
        )


def _check_runtime(settings: Settings, id_: str, model: OwnModel) -> None:
    """Check `runtime`: an adapter needs a runtime of the user, other models have none. Raises Configuration."""
    engine = engines().get(model.engine or "")
    if engine is None or not engine.runs_user_code:
        if model.runtime is not None:
            programs = ", ".join(name for name, facts in engines().items() if facts.runs_user_code)
            raise Configuration(f"`models.{id_}.runtime` is for the engine {programs} only.", "Remove the line.")
        return
    rules = settings.runtimes.get(model.runtime or "")
    if model.runtime is None or rules is None or rules.python is None or not serves(engine, model.runtime):
        raise Configuration(
            f"`models.{id_}` is an adapter; its `runtime` ({model.runtime or 'not set'}) is not one of your runtimes.",
            f"Add one: `runtimes: {{{id_}-env: {{python: PATH}}}}`, and `runtime: {id_}-env` for the model.",
        )


def _with_adapter_facts(entry: Entry, runtime: str | None) -> Entry:
    if runtime is None:
        return entry
    with contextlib.suppress(ModelBroken, NoAnswer):
        adapter = bounded_read(entry.target, lambda: read_adapter(entry.target))
        return replace(entry, runtime=runtime, name=adapter.kind.title, licence=adapter.licence)
    return replace(entry, runtime=runtime)


def entry_for(id_: str, path: Path, task: str | None, engine: str | None) -> Entry:
    """Return the entry of a file. Default for task and engine: those of the engines that read such files.

    Without an answer of the file, its suffix decides.
    """
    try:
        chosen, found_task = bounded_read(path, lambda: _reading_engines(path, task, engine))
    except NoAnswer:
        suffix = path.suffix.lower()
        named = [fact for fact in engines().values() if any(each.suffix == suffix != "" for each in fact.formats)]
        chosen = [engines()[engine]] if engine else named
        found_task = task or (chosen[0].tasks[0] if chosen else "text")
    name = clean_name(stem_of(path.name), 200)
    return Entry(id_, id_ if name == UNNAMED else name, found_task, tuple(fact.name for fact in chosen), path)


def _reading_engines(path: Path, task: str | None, engine: str | None) -> tuple[list[Engine], str]:
    """Return the engines that read a file, and its task."""
    chosen = [engines()[engine]] if engine else readers(path)
    return chosen, task or _task_of(path, chosen)


def _task_of(path: Path, chosen: list[Engine]) -> str:
    """Return what a file is for: the task of its format or content, otherwise the first task of its engine."""
    if not chosen:
        return "text"
    for model_format in chosen[0].formats:
        if model_format.is_complete(path):
            declared_task = model_format.find_task(path) if model_format.find_task else None
            if task := declared_task or model_format.task:
                return task
    return chosen[0].tasks[0]


def readers(path: Path) -> list[Engine]:
    """Return the engines that read a file with this suffix, a folder with these files, or of the declared class."""
    model_class = declared_class(path)
    if model_class:
        of_class = [
            engine
            for engine in engines().values()
            if any(model_class in model_format.model_classes for model_format in engine.formats)
        ]
        if of_class:
            return of_class
    return [
        engine
        for engine in engines().values()
        if any(not model_format.model_classes and model_format.is_complete(path) for model_format in engine.formats)
    ]


def suffixes() -> set[str]:
    """Return the suffixes of the files that some engine reads."""
    return {model_format.suffix for model_format in model_formats() if model_format.suffix}
