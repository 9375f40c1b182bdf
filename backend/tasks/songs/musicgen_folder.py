"""Inspection of a MusicGen folder: a text encoder, a code decoder and EnCodec in one checkpoint.

Simple and Controllable Music Generation, Copet et al., 2023 (arXiv:2306.05284). The folder is in the format of
transformers. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.common.errors import ModelBroken, ModelIncompatible
from backend.common.formats.safetensors import FETCH, Checkpoint, open_checkpoint

PLAIN, MELODY = "MusicgenForConditionalGeneration", "MusicgenMelodyForConditionalGeneration"
TOKENIZER = "tokenizer.json"
_PARTS = ("text_encoder", "audio_encoder", "decoder")


@dataclass(frozen=True)
class MusicgenFolder:
    """A MusicGen folder: its path, model class and checkpoint."""

    path: Path
    kind: str
    models: dict[str, Checkpoint]

    @property
    def tokenizer(self) -> Path:
        """The path of the text encoder's tokenizer file."""
        return self.path / TOKENIZER

    def parameter_count(self, name: str | None = None) -> int:
        """Return the number of parameters. `name` is ignored, since the folder is one model."""
        return self.models["model"].numbers


def open_musicgen(path: Path) -> MusicgenFolder:
    """Inspect a MusicGen folder. Raises ModelBroken or ModelIncompatible with the reason."""
    checkpoint = open_checkpoint(path)
    architectures = checkpoint.config.get("architectures")
    kind = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if kind not in (PLAIN, MELODY):
        raise ModelBroken(
            f"{path.name} is not a MusicGen model but {kind[:60] or 'a model without a class name'}.",
            "Choose another engine.",
        )
    parts: dict[str, object] = {name: checkpoint.config.get(name) for name in _PARTS}
    if missing := [name for name, part in parts.items() if not isinstance(part, dict)]:
        raise ModelBroken(f"{path.name}/config.json has no section {missing[0]}.", FETCH)
    if not (path / TOKENIZER).is_file():
        raise ModelIncompatible(
            f"{path.name} has no {TOKENIZER}, the only tokenizer format that is supported.",
            f"Download the model with its {TOKENIZER}.",
        )
    return MusicgenFolder(path, kind, {"model": checkpoint})
