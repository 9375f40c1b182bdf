"""Write the configuration files of an OpenVINO GenAI folder from the header of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

from backend.common.formats.gguf.reader import Header
from backend.common.formats.gguf.vocabulary import CONTROL, ENDS, Vocabulary

_NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}


def write_config(folder: Path, header: Header, vocabulary: Vocabulary) -> None:
    """Write config.json and generation_config.json into the folder."""
    numbers = {_NAMES[name]: size for name, size in header.sizes.items()}
    numbers |= {"vocab_size": len(vocabulary.tokens)}
    numbers |= {"max_position_embeddings": header.context_length} if header.context_length else {}
    kinds = zip(vocabulary.tokens, vocabulary.types, strict=False)
    marks = [number for number, (token, kind) in enumerate(kinds) if kind == CONTROL and token in ENDS]
    ends = sorted({*marks, *([vocabulary.special["eos"]] if "eos" in vocabulary.special else [])})
    _write(folder / "config.json", {"model_type": header.architecture, **numbers})
    _write(folder / "generation_config.json", {"eos_token_id": ends})


def _write(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
