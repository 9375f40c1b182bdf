"""Parser of protobuf's wire format (protobuf.dev/programming-guides/encoding), without copying bytes."""

from __future__ import annotations

import mmap
from collections.abc import Iterator


def fields(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int | slice]]:
    """Parse the fields between two offsets: numbers as integers, others as slices. Raises ValueError."""
    while at < end:
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            if at > end:
                raise ValueError("truncated")
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("unknown wire type")
        if at + length > end:
            raise ValueError("truncated")
        yield key >> 3, slice(at, at + length)
        at += length


def varint(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """Return the number at an offset and the offset after it. Raises ValueError, IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")
