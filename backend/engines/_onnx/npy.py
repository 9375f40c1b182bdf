"""Read and write rows of float32 in NumPy's file format (version 1.0 of numpy/lib/format.py) without NumPy."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64


def write_rows(path: Path, rows: list[bytes]) -> None:
    """Write rows of equal length, each as little-endian bytes."""
    shape = (len(rows), len(rows[0]) // 4)
    facts = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    missing = -(len(_MAGIC) + 2 + len(facts) + 1) % _ALIGNMENT
    header = facts.encode() + b" " * missing + b"\n"
    path.write_bytes(_MAGIC + struct.pack("<H", len(header)) + header + b"".join(rows))


def read_rows(path: Path, count: int) -> list[bytes]:
    """Return the rows of a file that `write_rows` wrote."""
    data = path.read_bytes()
    start = len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
    length = (len(data) - start) // count
    return [data[start + number * length : start + (number + 1) * length] for number in range(count)]
