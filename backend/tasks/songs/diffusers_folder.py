"""Inspection of a diffusers pipeline folder: component models listed in `model_index.json`. Needs no library.

Only safetensors weights are accepted. Components must come from diffusers or transformers: any other would be code that
is downloaded with the weights, which is never run.
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
# Modules of diffusers' own pipelines, which `model_index.json` may name instead of the library.
_PIPELINE_MODULES = ("ace_step", "stable_audio", "stable_audio_3", "audioldm2", "longcat_audio_dit")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline folder. `models` are the components that have weights, by name."""

    path: Path
    kind: SongKind
    models: Mapping[str, Checkpoint]

    @property
    def weight_bytes(self) -> int:
        """The size of all weights, as stored."""
        return sum(model.weight_bytes for model in self.models.values())

    def parameter_count(self, name: str | None = None) -> int:
        """Return the number of parameters of one model, or of all."""
        return sum(model.numbers for key, model in self.models.items() if name in (None, key))


def open_pipeline(path: Path) -> Pipeline:
    """Inspect a pipeline folder. Raises ModelBroken with the reason."""
    try:
        index = json.loads(read_text(path / PIPELINE))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelBroken(f"{path.name}/{PIPELINE} cannot be read: {error}.", FETCH) from None
    if not isinstance(index, dict):
        raise ModelBroken(f"{path.name}/{PIPELINE} is not a JSON object.", FETCH)
    names = component_names(index, path.name)
    kind = kind_of(path)
    assert kind is not None, "component_names() rejects other classes"
    models = {}
    for name in names:
        folder = path / name
        if not folder.is_dir():
            raise ModelBroken(f"{path.name} has no folder {name}, which is one of its {len(names)} components.", FETCH)
        if (folder / CONFIG).is_file():
            models[name] = _open_component(folder, path.name)
    return Pipeline(path, kind, models)


def component_names(index: Mapping[str, Any], title: str) -> list[str]:
    """Return the component names that `model_index.json` lists. Raises ModelBroken for an unsupported pipeline."""
    class_name = index.get("_class_name")
    kind = KINDS.get(class_name) if isinstance(class_name, str) else None
    if kind is None or not kind.is_pipeline:
        known = ", ".join(kind.title for kind in KINDS.values() if kind.is_pipeline)
        raise ModelBroken(
            f"{title} is a diffusers pipeline ({str(class_name)[:60]}) that is not supported for music.",
            f"Choose one of the supported pipelines: {known}.",
        )
    names = []
    for name, value in index.items():
        if name.startswith("_") or not isinstance(value, list) or len(value) != 2 or None in value:
            continue
        if PurePosixPath(name.replace("\\", "/")).name != name:
            raise ModelBroken(f"{title} has a component {name[:60]!r} outside its folder.", "Use another source.")
        if value[0] not in _LIBRARIES and value[0] not in _PIPELINE_MODULES:
            raise ModelBroken(
                f"{title} takes its component {name} from code in the model's repository ({str(value[0])[:60]}), "
                "which is never run.",
                "Look for a version of the model in the diffusers format.",
            )
        names.append(name)
    return names


def _open_component(folder: Path, title: str) -> Checkpoint:
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in PICKLES)
        if pickles:
            raise ModelBroken(
                f"{title} has the weights of its {folder.name} as a pickle file ({pickles[0]}), which can contain "
                "code and is never loaded.",
                "Look for a version of the model with safetensors weights.",
            )
        raise ModelBroken(f"{title} has no weights for its {folder.name}.", FETCH)
    return open_checkpoint(folder)
