"""Sizes in bytes: parsed as drivers and systems write them (numbers, `8031 MB`, `8,5 GiB`), and written for users."""

from __future__ import annotations

import re

_UNITS = {"": 0, "b": 0, "byte": 0, "bytes": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"(\d+(?:[ '\u00a0\u202f]\d{3})*)(?:([.,])(\d+))?\s*(bytes?|b|[kmgt](?:i?b)?|)", re.IGNORECASE)
_LONGEST = 8  # bytes of the registry's largest number
_IMPLAUSIBLE = 1 << 53  # no memory is so large: the number is damaged


def parse_bytes(value: object) -> int | None:
    """Parse a size. Returns None for anything else, such as a negative number, and for an ambiguous text.

    Units are powers of 1024, also without an `i`: DXGI, WMI and the drivers' tools count so. A separator before exactly
    three digits separates thousands, except where the unit makes a fraction as likely (`1,024 GB`).
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 <= value < _IMPLAUSIBLE else None
    if isinstance(value, float):
        return int(value) if value >= 0 and value.is_integer() else None
    if isinstance(value, list):
        return _of_bytes(value)
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    whole, separator, fraction, unit = re.sub(r"\D", "", match[1]), match[2], match[3] or "", match[4].lower()
    shift = _UNITS[unit if unit in _UNITS else unit[0]]
    if separator and len(fraction) == 3:
        return None if shift >= 30 else int(whole + fraction) << shift
    return int(whole) * (1 << shift) + (int(fraction) * (1 << shift) // 10 ** len(fraction) if fraction else 0)


def gb(size_bytes: float) -> str:
    """Return a size in GB (powers of 1000), with two decimals below 1 GB."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e9:.2f} GB"


def _of_bytes(parts: list[object]) -> int | None:
    """Return the number that a registry value holds as bytes, least significant first."""
    numbers = [part for part in parts if isinstance(part, int) and not isinstance(part, bool) and 0 <= part <= 255]
    return int.from_bytes(bytes(numbers), "little") if 0 < len(numbers) == len(parts) <= _LONGEST else None
