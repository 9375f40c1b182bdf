"""A folder for OpenVINO GenAI, as optimum-intel exports models: a graph with a state, and a tokenizer.json beside it.

Standard library only: the server reads it to reckon memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken
from backend.engines._text.tokenizer_files import TokenizerFolder, read_json

GRAPH, WEIGHTS, VOCABULARY = "openvino_model.xml", "openvino_model.bin", "tokenizer.json"
_FETCH = "Fetch the whole folder again, or export it again with optimum-intel."


@dataclass(frozen=True)
class OpenvinoFolder(TokenizerFolder):
    """A folder that was read."""

    config: Mapping[str, Any]

    @property
    def graph(self) -> Path:
        """The model's file, with its weights beside it."""
        return self.path / GRAPH

    @property
    def context_length(self) -> int | None:
        """Tokens that the model was made for."""
        return self._whole("max_position_embeddings", "n_positions")

    @property
    def cache_bytes_per_token(self) -> int | None:
        """Keys and values of one token at 16 bits, the widest that OpenVINO keeps them."""
        heads, layers = self._whole("num_attention_heads", "n_head"), self._whole("num_hidden_layers", "n_layer")
        width = self._whole("hidden_size", "n_embd")
        if heads is None or layers is None or width is None:
            return None
        return (
            2 * 2 * layers * (self._whole("num_key_value_heads") or heads) * (self._whole("head_dim") or width // heads)
        )

    @property
    def vocabulary_size(self) -> int | None:
        """How many tokens the model knows."""
        return self._whole("vocab_size")

    @property
    def ends(self) -> list[int | str]:
        """Tokens that end a text, as ids or as they are written."""
        settings = read_json(self.path / "generation_config.json", missing={})
        found = settings.get("eos_token_id", self.config.get("eos_token_id"))
        listed = found if isinstance(found, list) else [found]
        written = [self.names["eos_token"]] if "eos_token" in self.names else []
        return [*(one for one in listed if isinstance(one, int)), *written]

    @property
    def weight_bytes(self) -> int:
        """The size of the weights."""
        return (self.path / WEIGHTS).stat().st_size

    def _whole(self, *names: str) -> int | None:
        found = (self.config.get(name) for name in names)
        return next((value for value in found if isinstance(value, int) and value > 0), None)


def open_folder(path: Path) -> OpenvinoFolder:
    """Reads a folder. Raises ModelBroken for what is damaged or missing."""
    folder = OpenvinoFolder(path, read_json(path / "config.json"))
    for name in (GRAPH, WEIGHTS, VOCABULARY):
        if not (path / name).is_file():
            raise ModelBroken(f"{path.name} has no {name}.", _FETCH)
    return folder
