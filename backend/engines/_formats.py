"""The model formats that several engines read: GGUF files and folders of safetensors."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.common.engine_api import ModelFormat
from backend.common.errors import ModelBroken
from backend.common.formats.gguf import read_header, read_layout, read_part
from backend.common.formats.gguf.kinds import MAGIC, SPLIT, part_names
from backend.common.formats.gguf.vocabulary import read_chat_template
from backend.common.formats.safetensors import CONFIG, is_checkpoint, open_checkpoint
from backend.tasks.text.templates import find_syntax_error

# The values of llama.cpp's llama_ftype: the type of most of the weights.
_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS"},
    **{20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M"},
    **{
        28: "IQ2_S",
        29: "IQ2_M",
        30: "IQ4_XS",
        31: "IQ1_M",
        32: "BF16",
        36: "TQ1_0",
        37: "TQ2_0",
        38: "MXFP4",
        39: "NVFP4",
        40: "Q1_0",
    },
}


def _find_gguf_task(path: Path) -> str | None:
    with contextlib.suppress(ModelBroken):
        if read_header(path).makes_embeddings:
            return "embeddings"
    return None


def _validate_gguf(path: Path) -> None:
    """Parse the header, and those of all parts of a split model. Raises ModelBroken, ModelIncompatible."""
    named = SPLIT.fullmatch(path.name)
    if named and int(named[2]) > 1:
        _check_parts(path.with_name(part_names(path.name)[0]), int(named[3]))
        raise ModelBroken(
            f"{path.name} is part {int(named[2])} of {int(named[3])} of a split model.",
            f"Name the first part: {part_names(path.name)[0]}",
        )
    count = read_header(path).split_count
    if count > 1 and (named is None or int(named[3]) != count):
        raise ModelBroken(
            f"{path.name} is the first of {count} parts, but its name does not say so.",
            f"Rename it to NAME-00001-of-{count:05}.gguf, with all other parts in the same folder.",
        )
    _check_parts(path, count)


def _check_parts(first: Path, count: int) -> None:
    names = part_names(first.name)
    missing = [str(number) for number, name in enumerate(names, 1) if not first.with_name(name).exists()]
    if missing:
        listed = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
        which = f"part {listed} is" if len(missing) == 1 else f"parts {listed} are"
        raise ModelBroken(
            f"{first.name} is the first of {count} parts; {which} not in the same folder.",
            "Put all parts into the same folder, under their original names.",
        )
    for number, name in enumerate(names[1:], 1):
        part = read_part(first.with_name(name))
        if (part.number, part.count) != (number, count):
            declared = f"part {(part.number or 0) + 1} of {part.count}"
            raise ModelBroken(
                f"{name} is not part {number + 1} of {count}: it declares {declared}.",
                "Download all parts again from the same source.",
            )


def _describe_gguf(path: Path) -> Mapping[str, Any]:
    header = read_header(path)
    return {
        "architecture": header.architecture,
        "quantisation": _FILE_TYPES.get(-1 if header.file_type is None else header.file_type),
        "context_tokens": header.context_length,
        "chat_template": header.has_chat_template,
        "chat_template_error": _template_error(path) if header.has_chat_template else None,
        "parts": header.split_count,
        "parameters": header.weights if header.split_count == 1 else _parameters_of_parts(path),
    }


def _template_error(path: Path) -> str | None:
    """Return the syntax error of the chat template, with its line."""
    with contextlib.suppress(ModelBroken, OSError):
        return find_syntax_error(read_chat_template(path) or "")
    return None


def _parameters_of_parts(path: Path) -> int | None:
    layout = read_layout(path)
    return layout.parameters if layout else None


def _describe_checkpoint(path: Path) -> Mapping[str, Any]:
    checkpoint = open_checkpoint(path)
    return {
        "architecture": checkpoint.architecture,
        "quantisation": checkpoint.quantisation,
        "context_tokens": checkpoint.context_length,
        "chat_template": checkpoint.has_chat_template,
        "parts": len(checkpoint.files),
        "parameters": checkpoint.numbers,
    }


GGUF = ModelFormat(
    name="gguf",
    suffix=".gguf",
    magic=MAGIC,
    find_task=_find_gguf_task,
    validate=_validate_gguf,
    describe=_describe_gguf,
    find_licence=lambda path: read_header(path).licence,
    web_download=True,
)
CHECKPOINT = ModelFormat(
    name="safetensors",
    files=(CONFIG, "tokenizer.json", "*.safetensors"),
    is_like=is_checkpoint,
    describe=_describe_checkpoint,
)
