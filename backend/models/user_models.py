"""The models that a user added: `<data>/models/added.json`, read again whenever another process changed it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
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
from backend.models.sources import Source, as_data, from_data

_LOCK_S = 5.0


class UserModels:
    """The file of added models. Each change is made under a lock and replaces the file atomically."""

    def __init__(self, models_dir: Path) -> None:
        self.file = models_dir / "added.json"
        self._stamp: tuple[int, int] | None = None
        self._entries: dict[str, Entry] = {}

    def entries(self) -> dict[str, Entry]:
        """Return the added models by id. Raises Configuration if the file is damaged."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._entries = {id_: self._entry(id_, facts) for id_, facts in self._read().items()}
            self._stamp = stamp
        return self._entries

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
