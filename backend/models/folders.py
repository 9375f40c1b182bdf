"""The folders whose files are listed as models, and which paths callers may name over HTTP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from backend.common.config.settings import Settings
from backend.common.formats.gguf.kinds import SPLIT
from backend.engines import model_formats
from backend.models.hub_cache import hub_cache


class Folders:
    """`<data>/models` and `model_folders`. Allowed paths may also be in the cache of Hugging Face."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._listed = [settings.models_dir, *settings.model_folders]
        self._cache = hub_cache(environ)

    def hold(self, path: Path) -> bool:
        """Return whether a path, with all links resolved, is in one of the folders."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(os.path.realpath(root)) for root in (*self._listed, self._cache))

    def files(self) -> list[Path]:
        """Return the entries of the listed folders, without subfolders' content."""
        files: list[Path] = []
        for folder in self._listed:
            try:
                files += sorted(file for file in folder.iterdir() if not file.name.startswith("."))
            except OSError:
                continue  # a missing folder has no models
        return files

    def model_files(self) -> list[Path]:
        """Return files and folders of known formats; of a split model only the first part."""
        return [
            file
            for file in self.files()
            if any(model_format.recognises(file) for model_format in model_formats())
            and (not (part := SPLIT.fullmatch(file.name)) or int(part[2]) == 1)
        ]
