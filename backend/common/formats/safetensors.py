"""Looks into a folder of safetensors without any library: is it whole, what model is it, how are its weights stored.

A file is a length (8 bytes, little-endian), that many bytes of JSON with each tensor's type, shape and place, then the
bytes of the tensors (the format is described at github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from backend.common.errors import ModelBroken
from backend.common.files import read_text, require_regular_file
from backend.common.formats.gguf.kinds import check_foreign, truncated

CONFIG = "config.json"
INDICES = ("model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json")
_LONGEST_HEADER = 100_000_000
_LONGEST_TEXT = 64_000_000  # of a configuration: more is none
FETCH = "Fetch the whole folder again from its source."
_SHARD = re.compile(r".*-\d{5}-of-(\d{5})\.safetensors")
_VARIANT = re.compile(r"\.(fp16|bf16|fp32|non_ema)[.-]")


@dataclass(frozen=True)
class Checkpoint:
    """What a folder says of itself; what it does not say is None."""

    path: Path
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    weight_bytes: int
    dtypes: Mapping[str, int]  # bytes by type, as safetensors names them

    @property
    def numbers(self) -> int:
        """How many weights it has; of packed ones their bytes."""
        sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
        return sum(count // sizes.get(dtype, 1) for dtype, count in self.dtypes.items())

    @property
    def architecture(self) -> str | None:
        """The name of the model's kind, such as llama."""
        found = self.config.get("model_type")
        return found if isinstance(found, str) else None

    @property
    def makes_text(self) -> bool:
        """Whether its makers call it a model that goes on with a text."""
        named = self.config.get("architectures")
        return isinstance(named, list) and any(str(one).endswith(("ForCausalLM", "LMHeadModel")) for one in named)

    @property
    def context_length(self) -> int | None:
        """Tokens that the model was made for."""
        inner = self.config.get("text_config")
        for section in (self.config, inner if isinstance(inner, dict) else {}):
            for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
                if isinstance(found := section.get(name), int) and found > 0:
                    return found
        return None

    @property
    def quantisation(self) -> str | None:
        """The method that packed the weights, or else the type of most of them."""
        packed = self.config.get("quantization_config")
        if isinstance(packed, dict) and isinstance(method := packed.get("quant_method"), str):
            return method
        return max(self.dtypes, key=lambda name: self.dtypes[name], default=None)

    @property
    def has_chat_template(self) -> bool:
        """Whether a template for conversations comes with it."""
        if (self.path / "chat_template.jinja").is_file() or (self.path / "chat_template.json").is_file():
            return True
        file = self.path / "tokenizer_config.json"
        return file.is_file() and bool(_json(file).get("chat_template"))


def is_checkpoint(path: Path) -> bool:
    """Whether a folder holds weights as safetensors."""
    return path.is_dir() and any(path.glob("*.safetensors"))


def is_variant(name: str) -> bool:
    """Whether a file with weights is by its name a second copy of those beside it, in other numbers."""
    return _VARIANT.search(name) is not None


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads a folder: configuration, index, the header of each file.

    Raises ModelBroken, with `missing` where all that is wrong is that a file is not there.
    """
    config = _json(path / CONFIG)
    files = _files(path)
    dtypes: Counter[str] = Counter()
    for file in files:
        try:
            facts = file.stat()
            dtypes.update(_dtypes(file, facts.st_size, facts.st_mtime_ns))
        except OSError as error:
            raise ModelBroken(f"{file} cannot be read: {error.strerror}.", "Check that you may read it.") from None
    return Checkpoint(path, config, files, sum(dtypes.values()), dict(dtypes))


def _files(path: Path) -> tuple[Path, ...]:
    """The files with weights: those of the index, else all that lie there."""
    index = next((path / name for name in INDICES if (path / name).is_file()), None)
    if index is None:
        usual = sorted(path.glob("model*.safetensors")) or sorted(path.glob("*.safetensors"))
        if not usual:
            raise ModelBroken(f"{path.name} has no file with weights (model.safetensors).", FETCH)
        if shards := [found for file in usual if (found := _SHARD.fullmatch(file.name))]:
            raise _missing(path, INDICES[0], f", which tells what lies in each of {int(shards[0][1])} files")
        return tuple(file for file in usual if not is_variant(file.name)) or tuple(usual)
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelBroken(f"{path.name}/{index.name} does not tell where the weights lie.", FETCH)
    names = sorted({str(name) for name in places.values()})
    for name in names:
        if PurePosixPath(name.replace("\\", "/")).name != name:
            raise ModelBroken(
                f"{path.name} wants weights from {name[:200]!r}, which is outside its folder.",
                "Fetch the model from a source you trust.",
            )
        if not (path / name).is_file():
            raise _missing(path, name[:200], f", one of {len(names)} with its weights")
    return tuple(path / name for name in names)


def _missing(path: Path, name: str, what: str) -> ModelBroken:
    return ModelBroken(f"{path.name} has no file {name}{what}.", FETCH, missing=name)


@lru_cache(maxsize=256)
def _dtypes(file: Path, size: int, mtime_ns: int) -> dict[str, int]:
    """Bytes of the tensors by type. Raises ModelBroken, OSError."""
    require_regular_file(file)
    with file.open("rb") as opened:
        start = opened.read(512)
        check_foreign(file.name, start, size)
        length = int.from_bytes(start[:8], "little")
        if size < 8 or length > size - 8:
            raise truncated(file.name, f"it has {size} bytes and should begin with a list of {length}")
        if length > _LONGEST_HEADER:
            raise _damaged(file, "its list of tensors is longer than any is")
        opened.seek(8)
        try:
            listed = json.loads(opened.read(length))
            tensors = {name: one for name, one in listed.items() if name != "__metadata__"}
            places = [(one["dtype"], *map(int, one["data_offsets"])) for one in tensors.values()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _damaged(file, "its list of tensors cannot be read") from None
    found: Counter[str] = Counter()
    for dtype, begin, end in places:
        if not 0 <= begin <= end:
            raise _damaged(file, "a tensor ends before it begins")
        found[str(dtype)] += end - begin
    needed = 8 + length + max((end for _, _, end in places), default=0)
    if size < needed:
        raise truncated(file.name, f"it has {size} bytes and its tensors end at {needed}")
    return dict(found)


def _damaged(file: Path, why: str) -> ModelBroken:
    return ModelBroken(f"{file.name} is damaged: {why}.", FETCH)


def _json(path: Path) -> dict[str, Any]:
    named = f"{path.parent.name}/{path.name}"
    try:
        if path.stat().st_size > _LONGEST_TEXT:
            raise ModelBroken(f"{named} is far too long for what it should be.", FETCH)
        found = json.loads(read_text(path))
    except FileNotFoundError:
        raise ModelBroken(
            f"{path.parent.name} has no {path.name}, which tells what its weights are of.", FETCH
        ) from None
    except OSError as error:
        raise ModelBroken(f"{named} cannot be read: {error.strerror}.", "Check that you may read it.") from None
    except (ValueError, RecursionError):
        raise ModelBroken(f"{named} is not JSON.", FETCH) from None
    if not isinstance(found, dict):
        raise ModelBroken(f"{named} is not a JSON object.", FETCH)
    return found
