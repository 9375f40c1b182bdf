"""The model files that transformers can load: a GGUF file, or a folder of safetensors.

Standard library only: the server reads them to estimate memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.common.errors import ModelBroken, ModelIncompatible
from backend.common.formats.gguf import parts, read_header, tokenizer
from backend.common.formats.gguf.vocabulary import CONTROL, ENDS, read_vocabulary
from backend.common.formats.safetensors import open_checkpoint
from backend.engines._text.tokenizer_files import TokenizerFolder, read_json


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk. `arguments` are those of transformers' `from_pretrained`."""

    name: str
    folder: Path
    arguments: Mapping[str, Any]
    parameter_count: int
    context_length: int | None
    cache_values: int | None  # values in the KV cache per token
    loading_bytes: int  # system memory needed while it is loaded, beyond the model itself


@dataclass(frozen=True)
class TokenizerFiles:
    """The model's tokenizer, special tokens and chat template."""

    tokenizer_json: str
    chat_template: str | None
    names: dict[str, str]
    marks: list[str]
    begin: str | None
    ends: list[int | str] = field(default_factory=list)


def open_model_files(path: Path) -> ModelFiles:
    """Parse the files of a model. Raises ModelBroken, ModelIncompatible."""
    return _folder(path) if path.is_dir() else _file(path)


def open_tokenizer(path: Path) -> TokenizerFiles:
    """Parse the model's tokenizer. Raises ModelBroken, ModelIncompatible."""
    return _tokenizer_of_folder(path) if path.is_dir() else _tokenizer_of_file(path)


def _file(path: Path) -> ModelFiles:
    header = read_header(path)
    if header.makes_embeddings:
        raise ModelIncompatible(f"{path.name} is an embedding model.", "Use the engine llama.cpp.")
    if len(parts(path)) > 1:
        raise ModelIncompatible(
            f"{path.name} is split into parts, which transformers does not read.", "Use the engine llama.cpp."
        )
    cache = header.cache_bytes_per_token
    return ModelFiles(
        name=path.name,
        folder=path.parent,
        arguments={"gguf_file": path.name},
        parameter_count=header.weights,
        context_length=header.context_length,
        cache_values=None if cache is None else cache // 2,
        loading_bytes=header.weights * 4,  # transformers converts all weights to float32 first
    )


def _folder(path: Path) -> ModelFiles:
    checkpoint = open_checkpoint(path)
    config: Mapping[str, Any] = checkpoint.config.get("text_config") or checkpoint.config
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    parameter_count = sum(count // sizes.get(dtype, 1) for dtype, count in checkpoint.dtypes.items())
    return ModelFiles(
        name=path.name,
        folder=path,
        arguments={"use_safetensors": True},
        parameter_count=parameter_count,
        context_length=checkpoint.context_length,
        cache_values=_cache_values(config),
        loading_bytes=0,
    )


def _cache_values(config: Mapping[str, Any]) -> int | None:
    def positive_int(*names: str) -> int | None:
        values = (config.get(name) for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    heads, layers = positive_int("num_attention_heads", "n_head"), positive_int("num_hidden_layers", "n_layer")
    width = positive_int("hidden_size", "n_embd")
    if heads is None or layers is None or width is None:
        return None
    return 2 * layers * (positive_int("num_key_value_heads") or heads) * (positive_int("head_dim") or width // heads)


def _tokenizer_of_file(path: Path) -> TokenizerFiles:
    vocabulary = read_vocabulary(path)
    ends = [token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=False) if kind == CONTROL]
    named = {f"{name}_token": vocabulary.text(name) or "" for name in ("bos", "eos", "unk", "pad")}
    return TokenizerFiles(
        tokenizer_json=json.dumps(tokenizer.tokenizer_json(vocabulary)),
        chat_template=vocabulary.chat_template,
        names=named,
        marks=vocabulary.control_marks(),
        begin=vocabulary.text("bos") if vocabulary.add_bos else None,
        ends=[*([vocabulary.special["eos"]] if "eos" in vocabulary.special else []), *(e for e in ends if e in ENDS)],
    )


def _tokenizer_of_folder(path: Path) -> TokenizerFiles:
    folder = TokenizerFolder(path)
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelIncompatible(
            f"{path.name} has no tokenizer.json, the only supported tokenizer format.",
            "Download the model with its tokenizer.json, or as GGUF.",
        )
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelBroken(
            f"{path.name}/{file.name} cannot be read: {error}.", "Download the complete folder again."
        ) from None
    ends: list[int | str] = [*_declared_ends(path)]
    ends += [folder.names["eos_token"]] if "eos_token" in folder.names else []
    begin = folder.names.get("bos_token") if folder.begins_with_bos else None
    return TokenizerFiles(content, folder.chat_template, folder.names, folder.control_marks, begin, ends)


def _declared_ends(path: Path) -> list[int]:
    """Return the end tokens of the model's own settings. Raises ModelBroken for a damaged file."""
    for name in ("generation_config.json", "config.json"):
        end_ids = read_json(path / name, missing={}).get("eos_token_id")
        listed = end_ids if isinstance(end_ids, list) else [end_ids]
        if ids := [end_id for end_id in listed if isinstance(end_id, int)]:
            return ids
    return []
