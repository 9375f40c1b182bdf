"""A model folder for OpenVINO GenAI, as optimum-intel exports it: a stateful graph and a tokenizer.json.

Standard library only: the server reads it to estimate memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken
from backend.common.files import find_outside_link
from backend.engines._text.tokenizer_files import TokenizerFolder, read_json

GRAPH, WEIGHTS, VOCABULARY = "openvino_model.xml", "openvino_model.bin", "tokenizer.json"
_FETCH = "Download the complete folder again, or export the model again with optimum-intel."


@dataclass(frozen=True)
class OpenvinoFolder(TokenizerFolder):
    """A parsed model folder."""

    config: Mapping[str, Any]

    @property
    def graph(self) -> Path:
        """The model's graph file. The file with its weights is in the same folder."""
        return self.path / GRAPH

    @property
    def context_length(self) -> int | None:
        """Optional. The context length in tokens that the model was trained for."""
        return self._positive_int("max_position_embeddings", "n_positions")

    @property
    def cache_bytes_per_token(self) -> int | None:
        """Optional. Bytes of the KV cache per token at 16 bits, the widest type that OpenVINO uses for it."""
        heads, layers = (
            self._positive_int("num_attention_heads", "n_head"),
            self._positive_int("num_hidden_layers", "n_layer"),
        )
        width = self._positive_int("hidden_size", "n_embd")
        if heads is None or layers is None or width is None:
            return None
        return (
            2
            * 2
            * layers
            * (self._positive_int("num_key_value_heads") or heads)
            * (self._positive_int("head_dim") or width // heads)
        )

    @property
    def vocabulary_size(self) -> int | None:
        """Optional. The number of tokens in the vocabulary."""
        return self._positive_int("vocab_size")

    @property
    def ends(self) -> list[int | str]:
        """The tokens that end a text, as ids or as strings."""
        settings = read_json(self.path / "generation_config.json", missing={})
        end_ids = settings.get("eos_token_id", self.config.get("eos_token_id"))
        listed = end_ids if isinstance(end_ids, list) else [end_ids]
        written = [self.names["eos_token"]] if "eos_token" in self.names else []
        return [*(end_id for end_id in listed if isinstance(end_id, int)), *written]

    @property
    def weight_bytes(self) -> int:
        """The size of the file with the weights."""
        return (self.path / WEIGHTS).stat().st_size

    def _positive_int(self, *names: str) -> int | None:
        """Return the first positive integer of the configuration under one of these names."""
        values = (self.config.get(name) for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), None)


def open_folder(path: Path) -> OpenvinoFolder:
    """Parse a model folder. Raises ModelBroken for damaged or missing files."""
    folder = OpenvinoFolder(path, read_json(path / "config.json"))
    for name in (GRAPH, WEIGHTS, VOCABULARY):
        if not (path / name).is_file():
            raise ModelBroken(f"{path.name} has no {name}.", _FETCH)
    if link := find_outside_link(path, (GRAPH, WEIGHTS, VOCABULARY, "config.json")):
        raise ModelBroken(
            f"{path.name}/{link} is a link to a file outside its folder.", "Download the model from a source you trust."
        )
    return folder
