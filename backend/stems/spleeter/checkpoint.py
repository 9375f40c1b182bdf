"""Reads a TensorFlow checkpoint (V2) of one piece without TensorFlow.

The index is a table in LevelDB's format (doc/table_format.md there), which TensorFlow writes uncompressed: blocks of
entries whose keys share prefixes, and a footer of 48 bytes with the place of the block of blocks and a magic number.
The values are BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto): 1 dtype, 2 shape, 4 offset, 5 size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

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
        at = _varint(footer, _varint(footer, 0)[1])[1]  # the block of meta data, which there is none of
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
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + length]
        at += length


def _tensor(entry: bytes) -> Tensor | None:
    fields = dict(_fields(entry))
    shape = fields.get(2, b"")
    if fields.get(1) != _FLOAT or not isinstance(shape, bytes):
        return None
    sides = [
        dict(_fields(side)).get(1, 0) for number, side in _fields(shape) if number == 2 and isinstance(side, bytes)
    ]
    offset, size = fields.get(4, 0), fields.get(5, 0)
    assert isinstance(offset, int) and isinstance(size, int)
    return Tensor(tuple(side for side in sides if isinstance(side, int)), offset, size)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of protobuf: numbers and bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        else:
            length, at = (4, at) if key & 7 == 5 else _varint(message, at)
            yield key >> 3, message[at : at + length]
            at += length


def _pair(data: bytes, at: int) -> tuple[int, int]:
    first, at = _varint(data, at)
    return first, _varint(data, at)[0]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
