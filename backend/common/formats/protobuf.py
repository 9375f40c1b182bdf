"""Protobuf's wire format (protobuf.dev/programming-guides/encoding), read where it lies: no bytes are copied."""

from __future__ import annotations

import mmap
from collections.abc import Iterator


def fields(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int | slice]]:
    """The fields between two places: numbers as such, everything else as where it lies. Raises ValueError."""
    while at < end:
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("a kind that there is not")
        if at + length > end:
            raise ValueError("cut short")
        yield key >> 3, slice(at, at + length)
        at += length


def varint(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it. Raises ValueError, and IndexError where the bytes end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("an endless number")
