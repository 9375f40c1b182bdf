"""The configuration of an ONNX Runtime GenAI folder: names of inputs and outputs, end tokens, sizes, chat template.

Standard library only: the server reads it to validate a folder and to estimate memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken, ModelIncompatible
from backend.common.files import find_outside_link
from backend.common.formats.onnx.validation import outside_files, read_onnx
from backend.engines._text.tokenizer_files import TokenizerFolder, read_json

CONFIG = "genai_config.json"
_PARTS = {"encoder", "vision", "speech", "audio", "decoder_pipeline"}  # of models with several graphs: unsupported
_FETCH = "Download the complete folder again, or create it again with the builder of ONNX Runtime GenAI."


@dataclass(frozen=True)
class GenaiFolder(TokenizerFolder):
    """A parsed and validated folder. Its properties raise no exceptions."""

    config: Mapping[str, Any]

    @property
    def model(self) -> Mapping[str, Any]:
        """The section `model`."""
        section: Mapping[str, Any] = self.config["model"]
        return section

    @property
    def decoder(self) -> Mapping[str, Any]:
        """The section `model.decoder`, which describes the graph."""
        section: Mapping[str, Any] = self.model["decoder"]
        return section

    @property
    def graph(self) -> Path:
        """The ONNX file."""
        return self.path / str(self.decoder["filename"])

    @property
    def context_length(self) -> int | None:
        """Optional. The context length in tokens that the model was trained for."""
        length = self.model.get("context_length")
        return length if isinstance(length, int) and length > 0 else None

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of the KV cache per token in float32, the widest type of graphs for CPUs."""
        decoder = self.decoder
        return int(2 * decoder["num_hidden_layers"] * decoder["num_key_value_heads"] * decoder["head_size"] * 4)

    @property
    def vocabulary_size(self) -> int | None:
        """Optional. The number of tokens in the vocabulary."""
        size = self.model.get("vocab_size")
        return size if isinstance(size, int) else None

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        end_ids = self.model.get("eos_token_id")
        return frozenset(end_ids if isinstance(end_ids, list) else [end_ids] if isinstance(end_ids, int) else [])

    @property
    def file_bytes(self) -> int:
        """The size of all files of the folder."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())


def open_folder(path: Path) -> GenaiFolder:
    """Parse a folder. Raises ModelBroken for damaged or missing files, ModelIncompatible for unsupported models."""
    config = read_json(path / CONFIG)
    folder = GenaiFolder(path, config)
    try:
        parts = sorted(_PARTS & set(folder.model)) or [name for name in ("pipeline",) if name in folder.decoder]
        if parts:
            raise ModelIncompatible(
                f"{path.name} has several graphs ({', '.join(parts)}); only models with one graph are supported.",
                "Use a model for text only.",
            )
        numbers = [folder.decoder[name] for name in ("num_hidden_layers", "num_key_value_heads", "head_size")]
        inputs, outputs = folder.decoder["inputs"], folder.decoder["outputs"]
        if not all(isinstance(number, int) and 0 < number < 1 << 20 for number in numbers):
            raise TypeError("its sizes are not positive integers")
        for section, name in ((inputs, "input_ids"), (outputs, "logits"), (inputs, "past_key_names")):
            if not isinstance(section[name], str):
                raise TypeError(f"{name} is not a string")
        graph = folder.graph
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelBroken(f"{path.name}/{CONFIG} is incomplete or invalid: {error}.", _FETCH) from None
    if graph.parent != path or not graph.is_file():
        raise ModelBroken(f"{path.name}/{CONFIG} names the graph {graph.name}, which is not in its folder.", _FETCH)
    if link := find_outside_link(path, [CONFIG, graph.name, "tokenizer.json", *sorted(outside_files(graph))]):
        raise ModelBroken(
            f"{path.name}/{link} is a link to a file outside its folder.", "Download the model from a source you trust."
        )
    read_onnx(graph)
    if not (path / "tokenizer.json").is_file():
        raise ModelBroken(f"{path.name} has no tokenizer.json.", _FETCH)
    return folder
