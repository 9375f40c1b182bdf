"""Check a folder of safetensors without a library: whether it is complete, its model type and its weights.

A file is a length (8 bytes, little-endian), that many bytes of JSON with each tensor's type, shape and offsets, then
the bytes of the tensors (format: github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from backend.common.errors import ModelBroken
from backend.common.files import open_regular_file, read_text
from backend.common.formats.gguf.kinds import check_foreign, truncated
from backend.common.types import JsonObject

CONFIG = "config.json"
INDICES = ("model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json")
_LONGEST_HEADER = 100_000_000
_LONGEST_TEXT = 64_000_000  # of a configuration file
FETCH = "Download the complete folder again from its source."
_SHARD = re.compile(r".*-\d{5}-of-(\d{5})\.safetensors")
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}  # of a number, by type
_VARIANT = re.compile(r"\.(fp16|bf16|fp32|non_ema)[.-]")


@dataclass(frozen=True)
class Checkpoint:
    """The facts of a folder. A missing fact is None."""

    path: Path
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    weight_bytes: int
    dtypes: Mapping[str, int]  # bytes by type, with the type names of safetensors

    @property
    def numbers(self) -> int:
        """Number of weights; for packed weights, their bytes."""
        sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
        return sum(count // sizes.get(dtype, 1) for dtype, count in self.dtypes.items())

    @property
    def architecture(self) -> str | None:
        """The model type, such as llama."""
        model_type = self.config.get("model_type")
        return model_type if isinstance(model_type, str) else None

    @property
    def makes_text(self) -> bool:
        """Whether its configuration declares a causal language model."""
        classes = self.config.get("architectures")
        return isinstance(classes, list) and any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in classes)

    @property
    def context_length(self) -> int | None:
        """Context length in tokens that the configuration declares."""
        inner = self.config.get("text_config")
        for section in (self.config, inner if isinstance(inner, dict) else {}):
            for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
                if isinstance(tokens := section.get(name), int) and tokens > 0:
                    return tokens
        return None

    @property
    def quantisation(self) -> str | None:
        """The quantization method, otherwise the type of most weights."""
        packed = self.config.get("quantization_config")
        if isinstance(packed, dict) and isinstance(method := packed.get("quant_method"), str):
            return method
        return max(self.dtypes, key=lambda name: self.dtypes[name], default=None)

    @property
    def has_chat_template(self) -> bool:
        """Whether it includes a chat template."""
        if (self.path / "chat_template.jinja").is_file() or (self.path / "chat_template.json").is_file():
            return True
        file = self.path / "tokenizer_config.json"
        return file.is_file() and bool(_json(file).get("chat_template"))


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder contains weights as safetensors."""
    return path.is_dir() and any(path.glob("*.safetensors"))


def is_variant(name: str) -> bool:
    """Return whether a file is a copy of the weights in another type, by its name."""
    return _VARIANT.search(name) is not None


def open_checkpoint(path: Path) -> Checkpoint:
    """Parse a folder: configuration, index, and the header of each file.

    Raises ModelBroken; its `missing` is a file name if that file is all that is missing.
    """
    config = _json(path / CONFIG)
    files = _files(path)
    dtypes: Counter[str] = Counter()
    for file in files:
        try:
            facts = file.stat()
            dtypes.update(_dtypes(file, facts.st_size, facts.st_mtime_ns))
        except OSError as error:
            raise ModelBroken(
                f"{file} cannot be read: {error.strerror}.", "Check that you have permission to read it."
            ) from None
    return Checkpoint(path, config, files, sum(dtypes.values()), dict(dtypes))


def _files(path: Path) -> tuple[Path, ...]:
    """Return the files with weights: those of the index, otherwise all in the folder."""
    index = next((path / name for name in INDICES if (path / name).is_file()), None)
    if index is None:
        usual = sorted(path.glob("model*.safetensors")) or sorted(path.glob("*.safetensors"))
        if not usual:
            raise ModelBroken(f"{path.name} has no file with weights (model.safetensors).", FETCH)
        if shards := [match for file in usual if (match := _SHARD.fullmatch(file.name))]:
            raise _missing(path, INDICES[0], f", the index of its {int(shards[0][1])} weight files")
        return tuple(file for file in usual if not is_variant(file.name)) or tuple(usual)
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelBroken(f"{path.name}/{index.name} has no weight_map.", FETCH)
    names = sorted({str(name) for name in places.values()})
    for name in names:
        if PurePosixPath(name.replace("\\", "/")).name != name:
            raise ModelBroken(
                f"{path.name} has weights in {name[:200]!r}, which is outside its folder.",
                "Download the model from a source you trust.",
            )
        if not (path / name).is_file():
            raise _missing(path, name[:200], f", one of its {len(names)} weight files")
    return tuple(path / name for name in names)


def _missing(path: Path, name: str, what: str) -> ModelBroken:
    return ModelBroken(f"{path.name} has no file {name}{what}.", FETCH, missing=name)


@lru_cache(maxsize=256)
def _dtypes(file: Path, size: int, mtime_ns: int) -> dict[str, int]:
    """Return the bytes of the tensors by type. Raises ModelBroken, OSError."""
    with open_regular_file(file) as opened:
        start = opened.read(512)
        check_foreign(file.name, start, size)
        length = int.from_bytes(start[:8], "little")
        if size < 8 or length > size - 8:
            raise truncated(file.name, f"it has {size} bytes, but its header has {length}")
        if length > _LONGEST_HEADER:
            raise _damaged(file, "its header is too long")
        opened.seek(8)
        try:
            header = json.loads(opened.read(length))
            tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
            places = sorted((_place(tensor) for tensor in tensors), key=lambda place: place[1:])
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
            raise _damaged(file, "its header is not valid") from None
    sizes: Counter[str] = Counter()
    if any(not 0 <= start_at <= end for _, start_at, end, _ in places):
        raise _damaged(file, "a tensor ends before its start")
    needed = 8 + length + max((end for _, _, end, _ in places), default=0)
    if size < needed:
        raise truncated(file.name, f"it has {size} bytes, but its tensors end at byte {needed}")
    expected = 0
    for dtype, start_at, end, shape_bytes in places:
        if start_at != expected:  # the library refuses a file with gaps or overlaps
            how = "overlaps the one before it" if start_at < expected else "leaves a gap before it"
            raise _damaged(file, f"a tensor begins at byte {start_at} instead of {expected} and {how}")
        if shape_bytes not in (None, end - start_at):
            raise _damaged(file, f"the shape of a tensor needs {shape_bytes} bytes, but it has {end - start_at}")
        sizes[dtype] += end - start_at
        expected = end
    if size > needed:
        raise _damaged(file, f"{size - needed} bytes are left after its tensors")
    return dict(sizes)


def _place(tensor: dict[str, Any]) -> tuple[str, int, int, int | None]:
    """Return type, start, end and, for a known type, the bytes of its shape. Raises an exception if one is invalid."""
    start, end = tensor["data_offsets"]
    dtype, shape = str(tensor["dtype"]), tensor["shape"]
    if not all(isinstance(number, int) for number in (start, end, *shape)) or min(shape, default=0) < 0:
        raise ValueError("a shape or an offset is not a number")
    return dtype, start, end, math.prod(shape) * _BITS[dtype] // 8 if dtype in _BITS else None


def _damaged(file: Path, why: str) -> ModelBroken:
    return ModelBroken(f"{file.name} is damaged: {why}.", FETCH)


def _json(path: Path) -> JsonObject:
    named = f"{path.parent.name}/{path.name}"
    try:
        if path.stat().st_size > _LONGEST_TEXT:
            raise ModelBroken(f"{named} is too large for a configuration file.", FETCH)
        content = json.loads(read_text(path))
    except FileNotFoundError:
        raise ModelBroken(f"{path.parent.name} has no {path.name}, which describes the model.", FETCH) from None
    except OSError as error:
        raise ModelBroken(
            f"{named} cannot be read: {error.strerror}.", "Check that you have permission to read it."
        ) from None
    except (ValueError, RecursionError):
        raise ModelBroken(f"{named} is not JSON.", FETCH) from None
    if not isinstance(content, dict):
        raise ModelBroken(f"{named} is not a JSON object.", FETCH)
    return content
