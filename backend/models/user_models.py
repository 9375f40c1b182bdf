"""The models that a user added: `<data>/models/added.json`, read again whenever another process changed it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import get_args

from backend.child.download.workspace import NAME, lock_for
from backend.common.bounded_reads import bounded_read
from backend.common.config.settings.schema import Task
from backend.common.errors import Configuration, DiskFull
from backend.common.files import read_text
from backend.common.formats.gguf.kinds import SPLIT
from backend.common.types import JsonObject
from backend.models.entries import HUB, Entry, entry_for
from backend.models.sources import STORES, Source, as_data, from_data
from backend.models.stores import current_path

_LOCK_S = 5.0


class UserModels:
    """The file of added models. Each change is made under a lock and replaces the file atomically."""

    def __init__(self, models_dir: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self.file = models_dir / "added.json"
        self._stamp: tuple[int, int] | None = None
        self._entries: dict[str, Entry] = {}

    def entries(self) -> dict[str, Entry]:
        """Return the added models by id. Raises Configuration if the file is damaged."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._entries = {id_: self._entry(id_, facts) for id_, facts in self._read().items()}
            self._stamp = stamp
        if not any(entry.source and entry.source.kind in STORES for entry in self._entries.values()):
            return self._entries
        return {id_: self._with_current_file(entry) for id_, entry in self._entries.items()}

    def _with_current_file(self, entry: Entry) -> Entry:
        """Return the entry with the file that another program has for it now."""
        source = entry.source
        if source is None or source.kind not in STORES:
            return entry
        with contextlib.suppress(OSError):
            path = current_path(source.kind, str(source.member), self._environ)
            if path is not None and (path != entry.target or not entry.engines):
                current = entry_for(entry.id, path, entry.task if entry.engines else None, None)
                return replace(current, name=entry.name, source=replace(source, path=str(path)))
        return entry

    def put(self, id_: str, source: Source, task: str | None) -> Entry:
        """Add a model permanently. Raises Configuration, DiskFull."""
        facts = {"source": as_data(source), **({"task": task} if task else {})}
        with self._changing() as models:
            models[id_] = facts
        return self._entry(id_, facts)

    def note(self, id_: str, source: Source) -> None:
        """Change the source of an added model. Raises Configuration, DiskFull."""
        with self._changing() as models:
            if id_ in models:
                models[id_]["source"] = as_data(source)

    def drop(self, id_: str) -> None:
        """Remove a model from the file. Raises Configuration, DiskFull."""
        with self._changing() as models:
            models.pop(id_, None)

    def _entry(self, id_: str, facts: JsonObject) -> Entry:
        try:
            source, task = from_data(facts["source"]), facts.get("task")
            target = Path(source.path) if source.path else self._place(id_, source)
            if task not in (None, *get_args(Task)):
                raise ValueError(task)
        except (KeyError, TypeError, ValueError):
            raise self._damaged(f"its entry {id_} is invalid") from None
        if source.kind in STORES:
            entry = entry_for(id_, target, task, None)
            return replace(entry, name=str(source.member), source=source)
        name = (Path(source.file_name).stem if source.url or source.member else source.file_name) or id_
        return replace(entry_for(id_, target, task, None), name=name, source=source, licence=source.licence)

    def _place(self, id_: str, source: Source) -> Path:
        """Return the path for the download. A model from Hugging Face gets its path in that cache later."""
        if source.kind == "hf":
            return self.file.parent / HUB / (id_ + PurePosixPath(source.member or "").suffix)
        part = SPLIT.fullmatch(source.file_name)
        suffix = PurePosixPath(source.file_name).suffix.lower()
        return self.file.with_name(f"{id_}-00001-of-{part[3]}{suffix}" if part else f"{id_}{suffix}")

    def _read(self) -> dict[str, JsonObject]:
        try:
            models: dict[str, JsonObject] = json.loads(read_text(self.file))["models"]
            return dict(models.items())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._damaged(f"it cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damaged("it is not the JSON format of Touchstone") from None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, JsonObject]]:
        try:
            workspace = self.file.parent / NAME
            workspace.mkdir(parents=True, exist_ok=True)
            lock, until_s = lock_for(workspace, self.file.name), time.monotonic() + _LOCK_S
            while not lock.acquire():
                if time.monotonic() > until_s:
                    raise Configuration(f"Another program has locked {self.file}.", "Retry, or end that program.")
                time.sleep(0.01)
            try:
                models = self._read()
                yield models
                self._write(models)
            finally:
                lock.release()
        except OSError as error:
            raise DiskFull(f"{self.file} cannot be written: {error.strerror}.", "Free some space there.") from error

    def _write(self, models: dict[str, JsonObject]) -> None:
        fresh = self.file.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # an address may contain a secret
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            json.dump({"models": models}, out, indent=2, ensure_ascii=False)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self.file)

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            facts = bounded_read(self.file, self.file.stat)
        except OSError:
            return None
        return facts.st_ino, facts.st_mtime_ns

    def _damaged(self, why: str) -> Configuration:
        return Configuration(f"{self.file} is damaged: {why}.", "Correct it, or delete it and add the models again.")
