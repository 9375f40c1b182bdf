"""Write the tokenizer of a GGUF file in the format of Hugging Face's tokenizers, which GenAI also reads.

Pre-tokenizers have the names of GGUF files (llama.cpp's llama-vocab.cpp) and the patterns of the models' original
tokenizers. For `smollm` that differs from llama.cpp in two rare cases, where it matches the training: several spaces
before a digit, and non-ASCII digits after a space.
"""

from __future__ import annotations

import json
from pathlib import Path

from backend.common.errors import ModelIncompatible
from backend.common.formats.gguf.vocabulary import CONTROL, USER_DEFINED, Vocabulary
from backend.common.types import JsonObject

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def write(vocabulary: Vocabulary, folder: Path, context_tokens: int | None) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template. Raises ModelIncompatible."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "tokenizer.json", tokenizer_json(vocabulary))
    named = {f"{name}_token": vocabulary.text(name) for name in ("bos", "eos", "unk", "pad")}
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "add_bos_token": bool(vocabulary.add_bos),
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens or 2048,
        **{name: text for name, text in named.items() if text},
    }
    _write(folder / "tokenizer_config.json", config)
    if vocabulary.chat_template:
        (folder / "chat_template.jinja").write_text(vocabulary.chat_template, encoding="utf-8")


def tokenizer_json(vocabulary: Vocabulary) -> JsonObject:
    """Return the content of tokenizer.json. Raises ModelIncompatible for an unsupported kind."""
    pre_tokenizer = _pre_tokenizer(vocabulary.pre)
    if vocabulary.model != "gpt2" or pre_tokenizer is None or not vocabulary.merges:
        raise ModelIncompatible(
            f"The file's tokenizer ({vocabulary.model}, {vocabulary.pre}) cannot be converted: "
            "supported is byte-level BPE of GPT-2, SmolLM, Llama 3 and Qwen 2.",
            "Use the model with llama.cpp, or download it as an ONNX Runtime GenAI folder.",
        )
    added = [
        {
            **{"id": number, "content": token, "special": kind == CONTROL},
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for number, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=False))
        if kind in (CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if vocabulary.pre == "qwen2" else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"), None),
            **dict.fromkeys(("fuse_unk", "byte_fallback"), False),
            "ignore_merges": vocabulary.pre == "llama-bpe",
            "vocab": {token: number for number, token in enumerate(vocabulary.tokens)},
            "merges": [merge.split(" ") for merge in vocabulary.merges],
        },
    }


def _pre_tokenizer(pre: str | None) -> JsonObject | None:
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if pre in ("gpt-2", "default"):
        return levels
    if pre == "smollm":
        return _sequence({"type": "Digits", "individual_digits": True}, levels)
    if pre in ("llama-bpe", "qwen2"):
        pattern = _LLAMA3 if pre == "llama-bpe" else _QWEN2
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        return _sequence(split, {**levels, "use_regex": False})
    return None


def _sequence(*steps: JsonObject) -> JsonObject:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _write(path: Path, content: JsonObject) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
