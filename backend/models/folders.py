"""The folders whose files are offered as models, and whose paths callers may name over HTTP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from backend.common.config.settings import Settings
from backend.common.formats.gguf.kinds import SPLIT
from backend.common.formats.safetensors import is_checkpoint
from backend.models.entries import readers
from backend.models.hub_cache import hub_cache
from backend.tasks.songs.model_kinds import PIPELINE


class Folders:
    """`<data>/models` and `model_folders`; paths may also lie in the cache of Hugging Face."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._listed = [settings.models_dir, *settings.model_folders]
        self._cache = hub_cache(environ)

    def hold(self, path: Path) -> bool:
        """Whether a path, after all links, lies in one of the folders."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(os.path.realpath(root)) for root in (*self._listed, self._cache))

    def files(self) -> list[Path]:
        """What lies directly in the listed folders."""
        found: list[Path] = []
        for folder in self._listed:
            try:
                found += sorted(file for file in folder.iterdir() if not file.name.startswith("."))
            except OSError:
                continue  # a folder that is not there has no models
        return found

    def model_files(self) -> list[Path]:
        """Files and folders of the kinds that are known here; of a model in parts only the first."""
        return [
            file
            for file in self.files()
            if (readers(file) or is_checkpoint(file) or (file / PIPELINE).is_file())
            and (not (part := SPLIT.fullmatch(file.name)) or int(part[2]) == 1)
        ]
