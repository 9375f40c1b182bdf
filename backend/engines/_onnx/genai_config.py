"""What an ONNX Runtime GenAI folder says of itself: names of inputs and outputs, ends of text, sizes, chat template.

Standard library only: the server reads it to judge a folder and to reckon its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken, ModelIncompatible
from backend.common.formats.onnx.validation import read_onnx
from backend.engines._text.tokenizer_files import TokenizerFolder, read_json

CONFIG = "genai_config.json"
_PARTS = {"encoder", "vision", "speech", "audio", "decoder_pipeline"}  # more than one graph: not driven here
_FETCH = "Fetch the whole folder again, or make it again with the builder of ONNX Runtime GenAI."


@dataclass(frozen=True)
class GenaiFolder(TokenizerFolder):
    """A folder that was read. Raises nothing after it was opened with `open_folder`."""

    config: Mapping[str, Any]

    @property
    def model(self) -> Mapping[str, Any]:
        """The section on the model."""
        section: Mapping[str, Any] = self.config["model"]
        return section

    @property
    def decoder(self) -> Mapping[str, Any]:
        """The section on the one graph."""
        section: Mapping[str, Any] = self.model["decoder"]
        return section

    @property
    def graph(self) -> Path:
        """The ONNX file."""
        return self.path / str(self.decoder["filename"])

    @property
    def context_length(self) -> int | None:
        """Tokens that the model was made for."""
        found = self.model.get("context_length")
        return found if isinstance(found, int) and found > 0 else None

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in float32, the widest that graphs for processors use."""
        decoder = self.decoder
        return int(2 * decoder["num_hidden_layers"] * decoder["num_key_value_heads"] * decoder["head_size"] * 4)

    @property
    def vocabulary_size(self) -> int | None:
        """How many tokens the model knows."""
        found = self.model.get("vocab_size")
        return found if isinstance(found, int) else None

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""
        found = self.model.get("eos_token_id")
        return frozenset(found if isinstance(found, list) else [found] if isinstance(found, int) else [])

    @property
    def file_bytes(self) -> int:
        """All files of the folder."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())


def open_folder(path: Path) -> GenaiFolder:
    """Reads a folder. Raises ModelBroken for what is damaged or missing, ModelIncompatible for what is not driven."""
    config = read_json(path / CONFIG)
    folder = GenaiFolder(path, config)
    try:
        more = sorted(_PARTS & set(folder.model)) or [name for name in ("pipeline",) if name in folder.decoder]
        if more:
            raise ModelIncompatible(
                f"{path.name} is a model of several graphs ({', '.join(more)}), and this version drives one alone.",
                "Use a model for text alone.",
            )
        numbers = [folder.decoder[name] for name in ("num_hidden_layers", "num_key_value_heads", "head_size")]
        inputs, outputs = folder.decoder["inputs"], folder.decoder["outputs"]
        if not all(isinstance(number, int) and 0 < number < 1 << 20 for number in numbers):
            raise TypeError("its sizes are no numbers")
        for section, name in ((inputs, "input_ids"), (outputs, "logits"), (inputs, "past_key_names")):
            if not isinstance(section[name], str):
                raise TypeError(f"{name} is no name")
        graph = folder.graph
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelBroken(f"{path.name}/{CONFIG} lacks what tells how to run the model: {error}.", _FETCH) from None
    if graph.parent != path or not graph.is_file():
        raise ModelBroken(f"{path.name}/{CONFIG} names the graph {graph.name}, which is not beside it.", _FETCH)
    read_onnx(graph)
    if not (path / "tokenizer.json").is_file():
        raise ModelBroken(f"{path.name} has no tokenizer.json.", _FETCH)
    return folder
