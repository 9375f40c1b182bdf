"""The folders whose files are listed as models, and which paths callers may name over HTTP."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from backend.child.convert import FOLDER
from backend.common.bounded_reads import NoAnswer, bounded_read
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.engine_api import BLOB
from backend.common.formats.gguf import first_part, how_to_join, is_split_by_hand
from backend.common.formats.gguf.kinds import PICKLES
from backend.engines import model_formats
from backend.models.hub_cache import hub_cache
from backend.models.stores.folder_walk import FolderWalk, walk

log = logging.getLogger(__name__)
READ_S = 1.5  # timeout of one read in a model folder: lists come within seconds although several folders are dead
_WALK_S = 1.0  # of one folder with all folders below it
_DEPTH = 4  # levels of folders below a model folder
_MOST_SKIPPED = 200
_INCOMPLETE = (".part", ".crdownload", ".download", ".incomplete", ".aria2", ".partial")
_OTHER_PICKLES = ("training_args", "optimizer", "scheduler", "rng_state")  # next to the weights of a checkpoint


class Folders:
    """`<data>/models` and `model_folders`. Allowed paths may also be in the cache of Hugging Face."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._listed = [settings.models_dir, *settings.model_folders]
        self._cache = hub_cache(environ)
        self._silent: set[Path] = set()
        self._seen: dict[Path, FolderWalk] = {}  # the last scan, by folder

    def hold(self, path: Path) -> bool:
        """Return whether a path, with all links resolved, is in one of the folders."""
        real = _real(path)
        return any(real.is_relative_to(_real(root)) for root in (*self._listed, self._cache))

    def model_files(self) -> list[Path]:
        """Return files and folders of known formats, also in folders below; of a split model only the first part.

        A folder that does not answer has the models of its last scan.
        """
        return [file for walk in self._scan() for file in _models(walk)]

    def skipped(self) -> list[tuple[Path, str, str]]:
        """Return what is left out, as path, reason and remedy."""
        skipped = [each for walk in self._scan() for each in _skipped(walk)]
        return skipped[:_MOST_SKIPPED]

    def _scan(self) -> list[FolderWalk]:
        walks = []
        for folder in self._listed:
            try:
                self._seen[folder] = bounded_read(folder, partial(_walk, folder), READ_S)
            except NoAnswer as error:
                if folder not in self._silent:
                    log.warning("model folder does not answer", extra={"folder": str(folder), "cause": error.strerror})
                self._silent.add(folder)
            except OSError:
                self._seen.pop(folder, None)  # a missing folder has no models
            else:
                self._silent.discard(folder)
            if walk := self._seen.get(folder):
                walks.append(walk)
        return walks

    def silent(self) -> list[Path]:
        """Return the folders that did not answer at the last scan."""
        return [folder for folder in self._listed if folder in self._silent]


def _walk(folder: Path) -> FolderWalk:
    return walk(folder, _is_model, _DEPTH, lambda inner: inner == folder / FOLDER, limit_s=_WALK_S)


def _is_model(path: Path) -> bool:
    return any(model_format.recognises(path) for model_format in model_formats())


def _models(walked: FolderWalk) -> list[Path]:
    files = [path for path in walked.found if _is_model(path) and not BLOB.fullmatch(path.name)]
    return list(dict.fromkeys(first_part(file) for file in files))  # also if only the first part is missing


def _skipped(walked: FolderWalk) -> Iterator[tuple[Path, str, str]]:
    """Yield files that look like models and are none, and what was not searched."""
    for path in walked.found:
        name = path.name.lower()
        if is_split_by_hand(path.name):
            yield path, "This is one part of a manually split file; such parts are not models.", how_to_join(path.name)
        elif name.endswith(_INCOMPLETE):
            yield path, "This is an incomplete download.", "Finish the download in the program that started it."
        elif name.endswith(PICKLES) and path.stem.lower() not in _OTHER_PICKLES:
            reason = "This is a pickle file, which can carry programs and is never loaded."
            yield path, reason, "Download the model as GGUF, ONNX or safetensors."
        elif BLOB.fullmatch(path.name):
            yield path, "This file belongs to Ollama.", f"Add it by its name: `{command('models import')}` lists them."
    for path, reason in walked.skipped:
        yield path, f"Not searched: {reason}.", "Name the folder of the models in `model_folders`."


def _real(path: Path) -> Path:
    """Return a path with all links resolved; without them if the disk does not answer, since nothing opens it then."""
    with contextlib.suppress(NoAnswer):
        return Path(bounded_read(path, lambda: os.path.realpath(path)))
    return Path(os.path.abspath(path))  # noqa: PTH100, since Path.absolute keeps `..`
