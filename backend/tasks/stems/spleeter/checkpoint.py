"""A reader of single-file TensorFlow checkpoints (V2) that does not need TensorFlow.

The index is a table in LevelDB's format (doc/table_format.md there), which TensorFlow writes uncompressed: blocks of
entries with prefix-compressed keys, and a 48-byte footer with the handle of the index block and a magic number. The
values are BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto): 1 dtype, 2 shape, 4 offset, 5 size.
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
    """The shape of a float32 tensor, and its offset and length in bytes in the data file."""

    shape: tuple[int, ...]
    offset: int
    length: int


def read_index(index: bytes) -> dict[str, Tensor]:
    """Return all float32 tensors by name. Raises ValueError for an invalid index."""
    try:
        if struct.unpack("<Q", index[-8:])[0] != _MAGIC:
            raise ValueError("the magic number is missing")
        footer = index[-_FOOTER:]
        position = varint(footer, varint(footer, 0)[1])[1]  # skip the metaindex block, which is empty
        tensors: dict[str, Tensor] = {}
        for _, handle in _entries(index, *_pair(footer, position)):
            for key, value in _entries(index, *_pair(handle, 0)):
                if key and (tensor := _tensor(value)):
                    tensors[key.decode("ascii")] = tensor
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is truncated or corrupt ({error})") from None
    return tensors


def _entries(index: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block."""
    if index[offset + size] != 0:
        raise ValueError("it contains a compressed block")
    block = index[offset : offset + size]
    end = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position)
        unshared, position = varint(block, position)
        length, position = varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length


def _tensor(entry: bytes) -> Tensor | None:
    message = dict(fields(entry, 0, len(entry)))
    shape = message.get(2, slice(0, 0))
    if message.get(1) != _FLOAT or not isinstance(shape, slice):
        return None
    sides = [
        dict(fields(entry, side.start, side.stop)).get(1, 0)
        for number, side in fields(entry, shape.start, shape.stop)
        if number == 2 and isinstance(side, slice)
    ]
    offset, size = message.get(4, 0), message.get(5, 0)
    if isinstance(offset, slice) or isinstance(size, slice):
        raise ValueError("the offset or size of a tensor is not a number")
    return Tensor(tuple(side for side in sides if isinstance(side, int)), offset, size)


def _pair(data: bytes, at: int) -> tuple[int, int]:
    first, at = varint(data, at)
    return first, varint(data, at)[0]
