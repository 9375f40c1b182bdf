"""A folder of MusicGen: a text encoder, a decoder of codes and EnCodec in one checkpoint. Standard library alone.

Simple and Controllable Music Generation, Copet et al., 2023 (arXiv:2306.05284); the folder's form is transformers'.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken, ModelIncompatible
from backend.common.formats.safetensors import FETCH, Checkpoint, open_checkpoint

PLAIN, MELODY = "MusicgenForConditionalGeneration", "MusicgenMelodyForConditionalGeneration"
TOKENIZER = "tokenizer.json"
_PARTS = ("text_encoder", "audio_encoder", "decoder")


@dataclass(frozen=True)
class MusicgenFolder:
    """What a folder holds, as far as the server need know."""

    path: Path
    kind: str
    models: dict[str, Checkpoint]

    @property
    def tokenizer(self) -> Path:
        """The vocabulary of its text encoder."""
        return self.path / TOKENIZER

    def numbers(self, name: str | None = None) -> int:
        """How many weights it has; it is one model."""
        return self.models["model"].numbers


def open_musicgen(path: Path) -> MusicgenFolder:
    """Looks into a folder. Raises ModelBroken and ModelIncompatible with the reason."""
    found = open_checkpoint(path)
    listed = found.config.get("architectures")
    kind = str(listed[0]) if isinstance(listed, list) and listed else ""
    if kind not in (PLAIN, MELODY):
        raise ModelBroken(
            f"{path.name} is a {kind[:60] or 'model of no name'}, and no MusicGen.", "Choose another engine."
        )
    parts: dict[str, Any] = {name: found.config.get(name) for name in _PARTS}
    if missing := [name for name, part in parts.items() if not isinstance(part, dict)]:
        raise ModelBroken(f"{path.name}/config.json says nothing of its {missing[0]}.", FETCH)
    if not (path / TOKENIZER).is_file():
        raise ModelIncompatible(
            f"{path.name} has no {TOKENIZER}, and this version reads no other form of a vocabulary.",
            "Fetch the model with its tokenizer.json.",
        )
    return MusicgenFolder(path, kind, {"model": found})
