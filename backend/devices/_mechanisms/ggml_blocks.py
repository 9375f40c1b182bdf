"""Random weights in ggml's formats, whose numbers are known exactly.

The layouts are those of `block_q4_0`, `block_q4_1`, `block_q8_0`, `block_q4_K` and `block_q6_K` in ggml-common.h, the
formulas those of `dequantize_row_*` in ggml-quants.c (ggml 0.20). Scales are powers of two, so that each number has at
most 11 bits: float16, in which kernels may hold it, loses nothing.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import neg

_SMALL, _LARGE = 32, 256  # numbers in a block


@dataclass(frozen=True)
class Encoded:
    """Numbers, their bytes, and the bytes of the numbers with the opposite signs."""

    numbers: list[float]
    data: bytes
    negated: bytes


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights: its data type in a proof's record, and its number in `enum ggml_type`.

    `numbers`: how many a block holds. `new_block` returns a random block.
    """

    dtype: str
    kind: int
    numbers: int
    new_block: Callable[[random.Random], Encoded]
    is_whole: bool = False  # whether the numbers are small integers

    def new_row(self, source: random.Random, length: int) -> Encoded:
        """Return a row of random blocks."""
        blocks = [self.new_block(source) for _ in range(length // self.numbers)]
        return Encoded(
            [number for block in blocks for number in block.numbers],
            b"".join(block.data for block in blocks),
            b"".join(block.negated for block in blocks),
        )


def _floats(code: str) -> Callable[[random.Random], Encoded]:
    def new_block(source: random.Random) -> Encoded:
        numbers = source.choices((-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0), k=_SMALL)
        packed, negated = (struct.pack(f"<{_SMALL}{code}", *each) for each in (numbers, map(neg, numbers)))
        return Encoded(numbers, packed, negated)

    return new_block


def _bfloat16(source: random.Random) -> Encoded:
    wide = _floats("f")(source)
    return Encoded(wide.numbers, _upper_halves(wide.data), _upper_halves(wide.negated))


def _upper_halves(data: bytes) -> bytes:
    return b"".join(data[start + 2 : start + 4] for start in range(0, len(data), 4))


def _q8_0(source: random.Random) -> Encoded:
    scale = 2.0 ** -source.randint(4, 6)
    whole = source.choices(range(-127, 128), k=_SMALL)
    data = struct.pack(f"<{_SMALL}b", *whole)
    return Encoded([scale * value for value in whole], _half(scale) + data, _half(-scale) + data)


def _q4_0(source: random.Random) -> Encoded:
    scale = 2.0 ** -source.randint(0, 2)
    whole = source.choices(range(16), k=_SMALL)
    data = _nibbles(whole[:16], whole[16:])
    return Encoded([scale * (value - 8) for value in whole], _half(scale) + data, _half(-scale) + data)


def _q4_1(source: random.Random) -> Encoded:
    scale, least = 2.0 ** -source.randint(0, 2), source.randint(-9, 0) / 2
    whole = source.choices(range(16), k=_SMALL)
    data = _nibbles(whole[:16], whole[16:])
    numbers = [scale * value + least for value in whole]
    return Encoded(numbers, _half(scale) + _half(least) + data, _half(-scale) + _half(-least) + data)


def _q4_k(source: random.Random) -> Encoded:
    """Eight groups of 32 numbers: a scale and a minimum of 6 bits each, times those of the block."""
    unit = 2.0**-6
    scales, minima = source.choices(range(64), k=8), source.choices(range(64), k=8)
    whole = source.choices(range(16), k=_LARGE)
    numbers = [unit * (scales[place // 32] * value - minima[place // 32]) for place, value in enumerate(whole)]
    packed = [scale & 63 | high >> 4 << 6 for scale, high in zip(scales[:4], scales[4:], strict=True)]
    packed += [least & 63 | high >> 4 << 6 for least, high in zip(minima[:4], minima[4:], strict=True)]
    packed += [scale & 15 | (least & 15) << 4 for scale, least in zip(scales[4:], minima[4:], strict=True)]
    data = bytes(packed)
    for start in range(0, _LARGE, 64):
        data += _nibbles(whole[start : start + 32], whole[start + 32 : start + 64])
    return Encoded(numbers, _half(unit) * 2 + data, _half(-unit) * 2 + data)


def _q6_k(source: random.Random) -> Encoded:
    """Sixteen groups of 16 numbers: a scale of 8 bits each, times that of the block."""
    unit = 2.0**-5
    scales = source.choices(range(-31, 32), k=16)
    whole = source.choices(range(64), k=_LARGE)
    numbers = [unit * scales[place // 16] * (value - 32) for place, value in enumerate(whole)]
    low, high = b"", b""
    for start in range(0, _LARGE, 128):
        parts = [whole[start + 32 * part : start + 32 * part + 32] for part in range(4)]
        low += _nibbles([value & 15 for value in parts[0] + parts[1]], [value & 15 for value in parts[2] + parts[3]])
        high += bytes(
            first >> 4 | second >> 4 << 2 | third >> 4 << 4 | fourth >> 4 << 6
            for first, second, third, fourth in zip(*parts, strict=True)
        )
    data = low + high + struct.pack("<16b", *scales)
    return Encoded(numbers, data + _half(unit), data + _half(-unit))


def _half(value: float) -> bytes:
    return struct.pack("<e", value)


def _nibbles(low: list[int], high: list[int]) -> bytes:
    return bytes(first | second << 4 for first, second in zip(low, high, strict=True))


FLOAT32 = WeightFormat("float32", 0, _SMALL, _floats("f"), is_whole=True)
# The other formats, the most common first: a proof may run out of time. bfloat16 is optional: few models have it.
FORMATS = (
    WeightFormat("float16", 1, _SMALL, _floats("e"), is_whole=True),
    WeightFormat("Q4_K", 12, _LARGE, _q4_k),
    WeightFormat("Q6_K", 14, _LARGE, _q6_k),
    WeightFormat("Q8_0", 8, _SMALL, _q8_0),
    WeightFormat("Q4_0", 2, _SMALL, _q4_0),
    WeightFormat("Q4_1", 3, _SMALL, _q4_1),
    WeightFormat("bfloat16", 30, _SMALL, _bfloat16, is_whole=True),
)
