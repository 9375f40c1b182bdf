"""Random inputs of the proofs, and reference results in plain Python on the processor.

Matrices are lists of rows. A reference has a tolerance for each entry. Products of small integers are exact in every
floating-point format whose mantissa holds their sums, so their tolerance is 0. For other products it is the classical
bound for inner products, a multiple of the sum of the products' magnitudes (N. J. Higham, Accuracy and Stability of
Numerical Algorithms, 2nd edition, section 3.1).
"""

from __future__ import annotations

import math
import random
import secrets
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul

from backend.common.device_api import WrongResult

Matrix = list[list[float]]
# Shares of the products' magnitudes: for float32 (twice the bound of 64 roundings), and for inputs of 11 bits.
PRECISE, COARSE = 8e-6, 4e-3
# Unit roundoffs: the largest relative error of one rounding.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Integers whose sum over 4,096 entries exceeds the range of float16, and is exact in float32 in any order.
TO_255 = tuple(float(value) for value in range(256))
LEFT_OUTLIER, RIGHT_OUTLIER = 400.0, 60.0  # their products stay in the range of float16, to which some hardware rounds


@dataclass(frozen=True)
class Reference:
    """The reference result, flat, and the tolerance of each entry."""

    values: list[float]
    allowed: list[float]


@dataclass(frozen=True)
class Difference:
    """The entry that is closest to its tolerance, or furthest beyond it."""

    error: float
    allowed: float


def fresh() -> random.Random:
    """Return a random generator with a secret seed, so results cannot be prepared."""
    return random.Random(secrets.randbits(64))


def real_matrix(source: random.Random, rows: int, columns: int, outliers: int, largest: float = LEFT_OUTLIER) -> Matrix:
    """Return a matrix of float32 values between -1 and 1, with outliers of up to `largest`."""
    values = array("f", (2 * source.random() - 1 for _ in range(rows * columns)))
    for position in source.sample(range(rows * columns), outliers):
        values[position] = source.choice((-1, 1)) * source.uniform(largest / 2, largest)
    return _rows(values.tolist(), columns)


def whole_matrix(source: random.Random, rows: int, columns: int, largest: int, outliers: int = 0) -> Matrix:
    """Return a matrix of integers of up to `largest`, with outliers 64 times as large."""
    values = source.choices([float(number) for number in range(-largest, largest + 1)], k=rows * columns)
    for position in source.sample(range(rows * columns), outliers):
        values[position] = source.choice((-64.0, 64.0)) * largest
    return _rows(values, columns)


def ternary_matrix(source: random.Random, rows: int, columns: int, zeros: int = 1) -> Matrix:
    """Return a matrix of -1, 0 and 1. `zeros`: how many times as many zeros as other numbers; default 1."""
    values = [-1.0, 1.0, *[0.0] * 2 * zeros]
    return table_matrix(source, rows, columns, values)


def table_matrix(source: random.Random, rows: int, columns: int, values: Sequence[float]) -> Matrix:
    """Return a matrix of random values of a short list. Fast."""
    table = [values[byte % len(values)] for byte in range(256)]
    return _rows(list(map(table.__getitem__, source.randbytes(rows * columns))), columns)


def rounded(matrix: Matrix, dtype: str) -> Matrix:
    """Return the matrix with each value rounded to float16 or bfloat16; float32 as it is."""
    if dtype == "float32":
        return matrix
    formats = [f"{len(row)}e" for row in matrix] if dtype == "float16" else [f"{len(row)}f" for row in matrix]
    packed = [struct.pack(form, *row) for form, row in zip(formats, matrix, strict=True)]
    if dtype == "bfloat16":
        packed = [_without_low_bits(row) for row in packed]
    return [list(struct.unpack(form, row)) for form, row in zip(formats, packed, strict=True)]


def product(left: Matrix, right: Matrix, share: float) -> Reference:
    """Return the matrix product. Tolerance: `share` of the products' magnitudes, 0 for integers."""
    columns = list(zip(*right, strict=True))
    if not share:  # integers: their sums are exact in any order
        sums = [float(sum(map(mul, row, column))) for row in left for column in columns]
        return Reference(sums, [0.0] * len(sums))
    values, allowed = [], []
    for row in left:
        for column in columns:
            products = list(map(mul, row, column))
            values.append(math.fsum(products))
            allowed.append(share * math.fsum(map(abs, products)))
    return Reference(values, allowed)


def elementwise(matrix: Matrix, compute: Callable[[float], float], share: float) -> Reference:
    """Return a function of each entry. Tolerance: `share` of the entry and of the result."""
    entries = flat(matrix)
    values = [compute(value) for value in entries]
    return Reference(values, [share * (abs(a) + abs(b)) + 1e-4 * share for a, b in zip(entries, values, strict=True)])


def convolution(images: list[Matrix], filters: list[list[Matrix]], share: float) -> Reference:
    """Return the 2-D cross-correlation of one image of several channels, without padding, stride 1."""
    height, width, side = len(images[0]), len(images[0][0]), len(filters[0][0])
    values, allowed = [], []
    for kernels in filters:
        for top in range(height - side + 1):
            for left in range(width - side + 1):
                products = [
                    image[top + y][left + x] * kernel[y][x]
                    for image, kernel in zip(images, kernels, strict=True)
                    for y in range(side)
                    for x in range(side)
                ]
                values.append(math.fsum(products))
                allowed.append(share * math.fsum(map(abs, products)))
    return Reference(values, allowed)


def row_sums(matrix: Matrix, share: float = PRECISE) -> Reference:
    """Return the sum of each row. Tolerance: `share` of the sum of magnitudes; 0 for integers that stay exact."""
    return Reference([math.fsum(row) for row in matrix], [share * math.fsum(map(abs, row)) for row in matrix])


def softmax(matrix: Matrix) -> Reference:
    """Return the softmax of each row, with the largest entry subtracted first."""
    values: list[float] = []
    for row in matrix:
        powers = [math.exp(value - max(row)) for value in row]
        values += [power / math.fsum(powers) for power in powers]
    return Reference(values, [1e-5] * len(values))


def rows_picked(matrix: Matrix, order: Sequence[int]) -> Reference:
    """Return rows in another order. Tolerance: 0, because this only copies."""
    values = [value for position in order for value in matrix[position]]
    return Reference(values, [0.0] * len(values))


def compare(what: str, got: Sequence[float], reference: Reference) -> Difference:
    """Compare `got`, flat, with the reference. Raises WrongResult with the measured error."""
    if len(got) != len(reference.values):
        raise WrongResult(f"{what} returned {len(got)} numbers instead of {len(reference.values)}")
    if odd := sum(not math.isfinite(value) for value in got):
        raise WrongResult(f"{what} returned {odd} of {len(got)} entries that are NaN or infinite")
    errors = [abs(value - want) for value, want in zip(got, reference.values, strict=True)]
    worst = max(range(len(errors)), key=lambda position: _ratio(errors[position], reference.allowed[position]))
    bad = sum(error > allowed for error, allowed in zip(errors, reference.allowed, strict=True))
    if bad:
        raise WrongResult(
            f"{what} was off by up to {max(errors):.3g} in {bad} of {len(got)} entries (allowed there: "
            f"{reference.allowed[worst]:.1g}){_factor(got, reference.values)}"
        )
    return Difference(errors[worst], reference.allowed[worst])


def flat(values: object) -> list[float]:
    """Return the numbers of nested lists, in order."""
    if isinstance(values, (list, tuple)):
        return [number for inner in values for number in flat(inner)]
    return [float(values)]  # type: ignore[arg-type]


def _ratio(error: float, allowed: float) -> float:
    return error / allowed if allowed else math.inf if error else 0.0


def _factor(got: Sequence[float], want: Sequence[float]) -> str:
    """Describe an error that all entries share; empty if there is none."""
    if not any(got):
        return "; every entry is 0"
    power = math.fsum(value * value for value in want)
    factor = math.fsum(value * right for value, right in zip(got, want, strict=True)) / power if power else 0.0
    rest = math.fsum((value - factor * right) ** 2 for value, right in zip(got, want, strict=True))
    return f"; all are {factor:.6g} times what they should be" if power and rest < 1e-6 * power else ""


def _without_low_bits(packed: bytes) -> bytes:
    """Round packed float32 values to the upper 16 bits, to the nearest, ties to even."""
    numbers = struct.unpack(f"{len(packed) // 4}I", packed)
    return struct.pack(f"{len(numbers)}I", *((n + 0x7FFF + (n >> 16 & 1)) & 0xFFFF0000 for n in numbers))


def _rows(values: list[float], columns: int) -> Matrix:
    return [values[start : start + columns] for start in range(0, len(values), columns)]
