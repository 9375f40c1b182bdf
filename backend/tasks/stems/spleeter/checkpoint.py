"""Reads a TensorFlow checkpoint (V2) of one piece without TensorFlow.

The index is a table in LevelDB's format (doc/table_format.md there), which TensorFlow writes uncompressed: blocks of
entries whose keys share prefixes, and a footer of 48 bytes with the place of the block of blocks and a magic number.
The values are BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto): 1 dtype, 2 shape, 4 offset, 5 size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from backend.common.formats.protobuf import fields, varint

_FOOTER, _MAGIC = 48, 0xDB4775248B80FB57
_FLOAT = 1


@dataclass(frozen=True)
class Tensor:
    """Where a tensor of 32-bit floats lies in the data file."""

    shape: tuple[int, ...]
    offset: int
    length: int


def read_index(index: bytes) -> dict[str, Tensor]:
    """All tensors of floats by name. Raises ValueError for what is no such index."""
    try:
        if struct.unpack("<Q", index[-8:])[0] != _MAGIC:
            raise ValueError("the magic number is missing")
        footer = index[-_FOOTER:]
        at = varint(footer, varint(footer, 0)[1])[1]  # the block of meta data, which there is none of
        found: dict[str, Tensor] = {}
        for _, place in _entries(index, *_pair(footer, at)):
            for key, value in _entries(index, *_pair(place, 0)):
                if key and (tensor := _tensor(value)):
                    found[key.decode("ascii")] = tensor
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is cut short or damaged ({error})") from None
    return found


def _entries(index: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block."""
    if index[offset + size] != 0:
        raise ValueError("a block of it is compressed")
    block = index[offset : offset + size]
    end = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + length]
        at += length


def _tensor(entry: bytes) -> Tensor | None:
    facts = dict(fields(entry, 0, len(entry)))
    shape = facts.get(2, slice(0, 0))
    if facts.get(1) != _FLOAT or not isinstance(shape, slice):
        return None
    sides = [
        dict(fields(entry, side.start, side.stop)).get(1, 0)
        for number, side in fields(entry, shape.start, shape.stop)
        if number == 2 and isinstance(side, slice)
    ]
    offset, size = facts.get(4, 0), facts.get(5, 0)
    if isinstance(offset, slice) or isinstance(size, slice):
        raise ValueError("the place of a tensor is no number")
    return Tensor(tuple(side for side in sides if isinstance(side, int)), offset, size)


def _pair(data: bytes, at: int) -> tuple[int, int]:
    first, at = varint(data, at)
    return first, varint(data, at)[0]
