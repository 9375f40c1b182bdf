"""A folder of diffusers: several models with a table of contents. Looked into without any library, before it is loaded.

Weights are safetensors alone. A component of a library other than diffusers and transformers would be a program that
comes with the weights, and is never run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from backend.common.errors import ModelBroken
from backend.common.files import read_text
from backend.common.formats.gguf.kinds import PICKLES
from backend.common.formats.safetensors import CONFIG, FETCH, Checkpoint, open_checkpoint
from backend.tasks.songs.model_kinds import KINDS, PIPELINE, SongKind, kind_of

_LIBRARIES = ("diffusers", "transformers")
# Modules of the pipelines that come with diffusers, which a table of contents may name in place of the library.
_OWN = ("ace_step", "stable_audio", "stable_audio_3", "audioldm2", "longcat_audio_dit")


@dataclass(frozen=True)
class Pipeline:
    """What a folder holds: `models` are those of its components that have weights, by name."""

    path: Path
    kind: SongKind
    models: Mapping[str, Checkpoint]

    @property
    def weight_bytes(self) -> int:
        """Of all models, as they are stored."""
        return sum(model.weight_bytes for model in self.models.values())

    def numbers(self, name: str | None = None) -> int:
        """How many weights one model has, or all."""
        return sum(model.numbers for key, model in self.models.items() if name in (None, key))


def open_pipeline(path: Path) -> Pipeline:
    """Looks into a folder. Raises ModelBroken with the reason."""
    try:
        index = json.loads(read_text(path / PIPELINE))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelBroken(f"{path.name}/{PIPELINE} cannot be read: {error}.", FETCH) from None
    if not isinstance(index, dict):
        raise ModelBroken(f"{path.name}/{PIPELINE} is not a JSON object.", FETCH)
    named = components(index, path.name)
    kind = kind_of(path)
    assert kind is not None, "components() refuses other classes"
    models = {}
    for name in named:
        folder = path / name
        if not folder.is_dir():
            raise ModelBroken(f"{path.name} has no folder {name}, one of its {len(named)} components.", FETCH)
        if (folder / CONFIG).is_file():
            models[name] = _opened(folder, path.name)
    return Pipeline(path, kind, models)


def components(index: Mapping[str, Any], title: str) -> list[str]:
    """The names of what a table of contents lists. Raises ModelBroken for a pipeline that makes no songs here."""
    named = index.get("_class_name")
    makes = KINDS.get(named) if isinstance(named, str) else None
    if makes is None or not makes.is_pipeline:
        known = ", ".join(kind.title for kind in KINDS.values() if kind.is_pipeline)
        raise ModelBroken(
            f"{title} is a pipeline of diffusers ({str(named)[:60]}) that makes no music, or none that is known here.",
            f"These make music: {known}.",
        )
    found = []
    for name, value in index.items():
        if name.startswith("_") or not isinstance(value, list) or len(value) != 2 or None in value:
            continue
        if PurePosixPath(name.replace("\\", "/")).name != name:
            raise ModelBroken(f"{title} has a component {name[:60]!r} outside its folder.", "Use another source.")
        if value[0] not in _LIBRARIES and value[0] not in _OWN:
            raise ModelBroken(
                f"{title} wants its component {name} from a program of its own ({str(value[0])[:60]}), and such are "
                "never run.",
                "Look for the same model in diffusers' own form.",
            )
        found.append(name)
    return found


def _opened(folder: Path, title: str) -> Checkpoint:
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in PICKLES)
        if pickles:
            raise ModelBroken(
                f"{title} has the weights of its {folder.name} as a pickle file ({pickles[0]}), which can carry "
                "programs and is never loaded.",
                "Look for the same model with safetensors.",
            )
        raise ModelBroken(f"{title} has no weights for its {folder.name}.", FETCH)
    return open_checkpoint(folder)
