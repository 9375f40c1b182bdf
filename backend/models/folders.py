"""The folders whose files are listed as models, and which paths callers may name over HTTP."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from backend.common.bounded_reads import NoAnswer, bounded_read
from backend.common.config.settings import Settings
from backend.common.formats.gguf import first_part
from backend.engines import model_formats
from backend.models.hub_cache import hub_cache

log = logging.getLogger(__name__)
READ_S = 1.5  # timeout of one read in a model folder: lists come within seconds although several folders are dead


class Folders:
    """`<data>/models` and `model_folders`. Allowed paths may also be in the cache of Hugging Face."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._listed = [settings.models_dir, *settings.model_folders]
        self._cache = hub_cache(environ)
        self._silent: set[Path] = set()
        self._seen: dict[Path, list[Path]] = {}  # models at the last scan, by folder

    def hold(self, path: Path) -> bool:
        """Return whether a path, with all links resolved, is in one of the folders."""
        real = _real(path)
        return any(real.is_relative_to(_real(root)) for root in (*self._listed, self._cache))

    def files(self) -> list[Path]:
        """Return the entries of the listed folders, without subfolders' content."""
        files: list[Path] = []
        for folder in self._listed:
            try:
                files += bounded_read(folder, partial(_entries, folder), READ_S)
            except OSError:
                continue  # a missing folder has no models
        return files

    def model_files(self) -> list[Path]:
        """Return files and folders of known formats; of a split model only the first part.

        A folder that does not answer has the models of its last scan.
        """
        files: list[Path] = []
        for folder in self._listed:
            try:
                self._seen[folder] = bounded_read(folder, partial(_models, folder), READ_S)
            except NoAnswer as error:
                if folder not in self._silent:
                    log.warning("model folder does not answer", extra={"folder": str(folder), "cause": error.strerror})
                self._silent.add(folder)
            except OSError:
                self._seen.pop(folder, None)  # a missing folder has no models
            else:
                self._silent.discard(folder)
            files += self._seen.get(folder, [])
        return files

    def silent(self) -> list[Path]:
        """Return the folders that did not answer at the last scan."""
        return [folder for folder in self._listed if folder in self._silent]


def _models(folder: Path) -> list[Path]:
    files = [file for file in _entries(folder) if any(each.recognises(file) for each in model_formats())]
    return list(dict.fromkeys(first_part(file) for file in files))  # also if only the first part is missing


def _entries(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if not file.name.startswith("."))


def _real(path: Path) -> Path:
    """Return a path with all links resolved; without them if the disk does not answer, since nothing opens it then."""
    with contextlib.suppress(NoAnswer):
        return Path(bounded_read(path, lambda: os.path.realpath(path)))
    return Path(os.path.abspath(path))  # noqa: PTH100, since Path.absolute keeps `..`
