"""Parser of the header of a GGUF file (format: ggml's docs/gguf.md)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO

from backend.common.errors import ModelBroken
from backend.common.formats.gguf.kinds import damaged, truncated
from backend.common.formats.gguf.layout import Layout, make_layout
from backend.common.formats.gguf.purposes import check_purpose, check_tensor_names, is_lora_adapter

_MAX_KEYS, _MAX_TENSORS, _MAX_LIST_TEXTS = 65_536, 262_144, 2_000_000
_KEPT_TEXT_BYTES = 1024
_KEPT_NUMBERS = 1024  # of a list: one for each layer
_STRING, _ARRAY = 8, 9
Scalar = int | float | str | None  # a value of the metadata; bool counts as int
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FRACTIONS = ("f", "d")
_SIZES = ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length")
_RECURRENT = ("ssm.", "wkv.")  # in the keys of models that may have no attention
_LARGEST = {
    "block_count": 4096,
    "attention.head_count": 65_536,
    "attention.head_count_kv": 65_536,
    "expert_count": 65_536,
}
_LARGEST_SIZE = 1 << 24  # of other dimensions
_LARGEST_TYPE = 255  # a larger number cannot be a future type
_LORA = (".lora_a", ".lora_b")
_CHECKED_NAMES = 64  # of the first tensors, to find out what a file is
# Weights per block and bytes per block, by tensor type: `GGML_QUANT_SIZES` of llama.cpp's package `gguf`.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip
REMOVED = (4, 5, 31, 32, 33, 36, 37, 38)  # types that llama.cpp no longer reads


@dataclass(frozen=True)
class Header:
    """The facts in the header of a GGUF file."""

    version: int
    architecture: str
    name: str | None
    context_length: int | None
    cache_bytes_per_token: int | None  # KV cache at 16 bits; None if the layers differ
    has_chat_template: bool
    file_type: int | None
    tensor_count: int
    weight_bytes: int
    file_bytes: int
    split_count: int
    licence: str | None = None
    weights: int = 0  # number of weights
    sizes: dict[str, int] = field(default_factory=dict)  # dimensions of the architecture, by the names in `_SIZES`
    pooling: int | None = None  # pooling of token states into one vector: 1 mean, 2 first token, 3 last
    split_number: int = 0  # of a part of a split model, from 0
    layout: Layout | None = None  # where the bytes are; None for a file without layers

    @property
    def makes_embeddings(self) -> bool:
        """Whether it is an embedding model."""
        return self.pooling in (1, 2, 3)


@dataclass(frozen=True)
class Part:
    """What a later part of a split model declares: its number, from 0, and the number of parts."""

    number: int | None
    count: int | None


@dataclass(frozen=True)
class Adapter:
    """The facts of a LoRA adapter. `weights`: the names of the tensors of the model that it changes."""

    architecture: str
    weights: tuple[str, ...]


class Reader:
    """Reads a header, never past the end of the file. All methods raise ModelBroken."""

    def __init__(self, file: BinaryIO, size: int, name: str, byteorder: str) -> None:
        self.file, self.size, self.name, self.at = file, size, name, 4
        self.order = "<" if byteorder == "little" else ">"
        self.list_texts = 0
        self.elements = 0
        self.lists: dict[str, tuple[int, ...]] = {}  # short lists of whole numbers in the metadata
        self.tensor_bytes: dict[str, int] = {}
        self.table_shape: list[int] = []  # of the embedding table
        file.seek(self.at)

    def header(self) -> Header:
        """Parse everything before the weights, and check that the weights are complete."""
        version, tensors, facts = self.start()
        text, integer = _getter(facts, str), _getter(facts, int)
        architecture = text("general.architecture")
        pooling = integer(f"{architecture}.pooling_type")
        check_purpose(self.name, text("general.type"), architecture, pooling)
        if architecture:
            self.check_sizes(integer, architecture, any(f".{key}" in fact for fact in facts for key in _RECURRENT))
        split_count = integer("split.count") or 1
        weight_bytes = self.weights(tensors, self.alignment(facts), split_count > 1)
        check_tensor_names(self.name, islice(self.tensor_bytes, _CHECKED_NAMES), bool(architecture))
        if not architecture:
            raise damaged(self.name, "it does not name its architecture")
        return Header(
            version=version,
            architecture=architecture,
            name=text("general.name"),
            context_length=max(0, integer(f"{architecture}.context_length") or 0) or None,
            cache_bytes_per_token=_cache_bytes_per_token(integer, architecture),
            has_chat_template="tokenizer.chat_template" in facts,
            file_type=integer("general.file_type"),
            tensor_count=tensors,
            weight_bytes=weight_bytes,
            file_bytes=self.size,
            split_count=split_count,
            split_number=integer("split.no") or 0,
            licence=text("general.license"),
            weights=self.elements,
            sizes={name: size for name in _SIZES if (size := integer(f"{architecture}.{name}"))},
            pooling=pooling,
            layout=self.layout(facts, architecture),
        )

    def layout(self, facts: Mapping[str, Scalar], architecture: str) -> Layout | None:
        """Return the memory layout, once the metadata and the tensors are parsed."""
        integers = {name: fact for name, fact in facts.items() if isinstance(fact, int)}
        found = make_layout(integers, self.lists, self.tensor_bytes, self.table_shape, architecture)
        return replace(found, parameters=self.elements) if found else None

    def adapter(self) -> Adapter:
        """Parse a LoRA adapter, which has a pair of small matrices for each tensor that it changes."""
        _, tensors, facts = self.start()
        text = _getter(facts, str)
        architecture, kind = text("general.architecture"), text("adapter.type")
        if not architecture or not is_lora_adapter(text("general.type"), kind):
            raise ModelBroken(f"{self.name} is not a LoRA adapter.", "Name a LoRA adapter as GGUF.")
        self.weights(tensors, self.alignment(facts))
        sides = [{name.removesuffix(end) for name in self.tensor_bytes if name.endswith(end)} for end in _LORA]
        if not sides[0] or sides[0] != sides[1]:
            raise damaged(self.name, "its matrices do not come in pairs")
        return Adapter(architecture, tuple(sorted(sides[0])))

    def part(self) -> Part:
        """Parse a later part of a split model, which has only its number and its tensors."""
        _, tensors, facts = self.start()
        integer = _getter(facts, int)
        self.weights(tensors, self.alignment(facts), is_part=True)
        return Part(integer("split.no"), integer("split.count"))

    def start(self) -> tuple[int, int, dict[str, Scalar]]:
        """Parse the version, the number of tensors and the metadata."""
        version = int(self.number("I"))
        tensors, keys = int(self.number("Q")), int(self.number("Q"))
        self.bounded("tensors", tensors, _MAX_TENSORS, 24)
        self.bounded("entries", keys, _MAX_KEYS, 13)
        return version, tensors, self.facts(keys)

    def alignment(self, facts: Mapping[str, Scalar]) -> int:
        """Return the alignment of the tensors."""
        alignment: int = _getter(facts, int)("general.alignment") or 32
        if alignment < 1 or alignment.bit_count() != 1:
            raise damaged(self.name, f"its alignment of {alignment} is not a power of two")
        return alignment

    def facts(self, count: int) -> dict[str, Scalar]:
        """Parse the metadata. The values of arrays and long strings are None."""
        facts: dict[str, Scalar] = {}
        for _ in range(count):
            key = self.text()
            if key is None or key in facts:
                raise damaged(
                    self.name, f"the entry {key!r} is repeated" if key else "the name of an entry is too long"
                )
            facts[key] = self.value(int(self.number("I")), key)
        return facts

    def value(self, kind: int, key: str = "") -> Scalar:
        """Parse one value. Returns None for an array or a long string. Short lists of integers are kept by `key`."""
        if kind in _SCALARS:
            number: int | float = self.number(_SCALARS[kind])
            return number
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise damaged(self.name, f"an entry has the unknown type {kind}")
        inner, count = int(self.number("I")), int(self.number("Q"))
        if inner in _SCALARS:
            size = count * struct.calcsize("=" + _SCALARS[inner])
            if count <= _KEPT_NUMBERS and _SCALARS[inner] not in _FRACTIONS:
                self.lists[key] = tuple(
                    map(int, struct.unpack(f"{self.order}{count}{_SCALARS[inner]}", self.take(size)))
                )
            else:
                self.skip(size)
        elif inner == _STRING:
            self.list_texts += count
            self.bounded("texts in a list", self.list_texts, _MAX_LIST_TEXTS, 0)
            self.bounded("texts in a list", count, _MAX_LIST_TEXTS, 8)
            self.skip_texts(count)
        else:
            raise damaged(self.name, f"a list has the unknown type {inner}")
        return None

    def weights(self, count: int, alignment: int, is_part: bool = False) -> int:
        """Return the bytes of all weights. Raises ModelBroken for tensors that contradict each other or the file.

        `is_part`: whether it is one part of a split model, whose first part may have no weights.
        """
        if count == 0 and not is_part:
            raise ModelBroken(f"{self.name} contains no weights, only a vocabulary.", "Use the model file itself.")
        total = end = 0
        expected = 0  # where the next tensor begins: ggml refuses a file with gaps or overlaps
        for number, (name, shape, kind, offset) in enumerate(self.tensors(count), 1):
            if name is None or name in self.tensor_bytes:
                raise damaged(self.name, f"tensor {number} has the name of another one, or one that is too long")
            per_block, block_bytes = self.block(number, kind)
            elements = math.prod(shape)
            self.elements += elements
            size = -(-elements // per_block) * block_bytes
            self.tensor_bytes[name] = size
            if name == "token_embd.weight":
                self.table_shape = shape
            if offset != expected:
                how = "overlaps the one before it" if offset < expected else "leaves a gap before it"
                raise damaged(self.name, f"tensor {number} begins at byte {offset} instead of {expected} and {how}")
            if shape and shape[0] % per_block:
                raise damaged(self.name, f"tensor {number} has rows of {shape[0]} weights, in blocks of {per_block}")
            end, expected = offset + size, _padded(offset + size, alignment)
            total += size
        start = _padded(self.at, alignment)
        if total and start + end > self.size:
            raise truncated(self.name, f"its weights end at byte {start + end}, but the file ends at byte {self.size}")
        if start + expected + alignment <= self.size:
            left = self.size - start - expected
            raise damaged(self.name, f"{left} bytes are left after its weights: their shapes do not fit the data")
        return total

    def block(self, number: int, kind: int) -> tuple[int, int]:
        """Return the weights and the bytes of a block. Raises ModelBroken for a type that llama.cpp does not read."""
        if kind in BLOCKS:
            return BLOCKS[kind]
        if kind in REMOVED:
            raise ModelBroken(
                f"{self.name} stores tensor {number} in a type that llama.cpp no longer reads (number {kind}).",
                "Download a newer file of this model.",
            )
        if kind > _LARGEST_TYPE:
            raise damaged(self.name, f"tensor {number} has the type {kind}, which does not exist")
        raise ModelBroken(
            f"{self.name} stores tensor {number} in a type that this version of Touchstone does not know "
            f"(number {kind}; known up to {max(BLOCKS)}).",
            "Update Touchstone, or download another quantization of this model.",
        )

    def check_sizes(self, integer: Callable[[str], Any], architecture: str, is_recurrent: bool) -> None:
        """Raise ModelBroken for dimensions that no model has. Models without attention declare zero heads."""
        sizes = {name: size for name in _SIZES if (size := integer(f"{architecture}.{name}")) is not None}
        for name, size in sizes.items():
            least = 0 if is_recurrent and "attention" in name else 1
            if not least <= size <= _LARGEST.get(name, _LARGEST_SIZE):
                raise damaged(self.name, f"it declares {architecture}.{name} as {size}")
        heads, kv_heads = sizes.get("attention.head_count"), sizes.get("attention.head_count_kv")
        if heads and kv_heads and kv_heads > heads:
            raise damaged(self.name, f"it declares {heads} attention heads, but {kv_heads} for keys and values")
        width = sizes.get("embedding_length")
        if heads and width and heads > width and "attention.key_length" not in sizes:
            raise damaged(self.name, f"it declares {heads} attention heads for {width} values")
        experts, used = (integer(f"{architecture}.{name}") for name in ("expert_count", "expert_used_count"))
        if experts is not None and not (used or 0) <= experts <= _LARGEST["expert_count"]:
            raise damaged(self.name, f"it declares {experts} experts, of which {used} are used")

    def tensors(self, count: int) -> Iterator[tuple[str | None, list[int], int, int]]:
        """Parse each tensor: its name, its shape with the contiguous dimension first, its type, and its offset."""
        for _ in range(count):
            name = self.text()
            dimensions = int(self.number("I"))
            if not 0 <= dimensions <= 4:
                raise damaged(self.name, f"a tensor claims {dimensions} dimensions")
            shape = [int(self.number("Q")) for _ in range(dimensions)]
            yield name, shape, int(self.number("I")), int(self.number("Q"))

    def bounded(self, what: str, count: int, limit: int, least_bytes: int) -> None:
        """Raise ModelBroken for a count that this file cannot contain, before anything is read or allocated."""
        if count > limit:
            raise damaged(self.name, f"it claims {count} {what}, more than any model has")
        if count * least_bytes > self.size - self.at:
            raise truncated(self.name, f"it claims {count} {what}, more than the rest of the file can contain")

    def number(self, code: str) -> Any:
        """Parse one number of the given struct type."""
        return struct.unpack(self.order + code, self.take(struct.calcsize("=" + code)))[0]

    def text(self) -> str | None:
        """Parse a string. Returns None if it is longer than the header's facts need."""
        length = int(self.number("Q"))
        if length > _KEPT_TEXT_BYTES:
            self.skip(length)
            return None
        return self.take(length).decode("utf-8", "replace")

    def take(self, length: int) -> bytes:
        """Read the next bytes."""
        if length > self.size - self.at:
            raise truncated(self.name, f"its header needs {length} more bytes after byte {self.at}")
        data = self.file.read(length)
        if len(data) < length:
            raise truncated(self.name, "it was shortened while it was read")
        self.at += length
        return data

    def skip_texts(self, count: int) -> None:
        """Skip a list of strings: a vocabulary of 100,000 tokens in about 20 ms."""
        length_at = struct.Struct(self.order + "Q").unpack_from
        block, at = b"", 0  # `at` is relative to self.at, the start of the block
        for _ in range(count):
            if at + 8 > len(block):
                self.skip(at)
                block, at = self.file.read(65_536), 0
                if len(block) < 8:
                    raise truncated(self.name, f"a list of texts ends after byte {self.at}")
            at += 8 + length_at(block, at)[0]
        self.skip(at)

    def skip(self, length: int) -> None:
        """Skip bytes."""
        if length > self.size - self.at:
            raise truncated(self.name, f"its header needs {length} more bytes after byte {self.at}")
        self.at += length
        self.file.seek(self.at)


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _getter(facts: Mapping[str, Scalar], kind: type[Any]) -> Callable[[str], Any]:
    def value(key: str) -> Any:
        fact = facts.get(key)
        return fact if isinstance(fact, kind) and not isinstance(fact, bool) else None

    return value


def _cache_bytes_per_token(integer: Callable[[str], Any], architecture: str) -> int | None:
    layers, heads = integer(f"{architecture}.block_count"), integer(f"{architecture}.attention.head_count")
    width = integer(f"{architecture}.embedding_length")
    if not (layers and heads and width) or min(layers, heads, width) < 1:
        return None
    key_value_heads = integer(f"{architecture}.attention.head_count_kv") or heads
    key = integer(f"{architecture}.attention.key_length") or width // heads
    value = integer(f"{architecture}.attention.value_length") or width // heads
    return max(0, int(layers * key_value_heads * (key + value) * 2))
