"""Reference results of the layers of text models in plain Python: means, norms, softmax and attention.

Inputs are eighths, which float32, float16 and bfloat16 hold exactly, with outliers as activations of real models have
(M. Sun et al., Massive Activations in Large Language Models, arXiv:2402.17762): their squares exceed float16's range.
`share` is the tolerance as a share of the result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from operator import mul

from backend.devices._mechanisms.reference_math import Matrix, Reference

WIDE = 4096  # entries of a reduction, as in a hidden state of a model with 7 billion parameters
OUTLIER = 384  # 6 bits and more than float16's largest square root
EPSILON = 1e-5
_FLUSHED = 6.2e-5  # hardware may flush float16 below its smallest normal number to zero


def eighths(
    source: random.Random, rows: int, columns: int, least: int, most: int, outliers: int = 0, outlier: int = OUTLIER
) -> Matrix:
    """Return a matrix of eighths from `least` to `most`, with whole outliers in each row."""
    numbers = [number / 8 for number in range(least, most + 1)]
    matrix = [source.choices(numbers, k=columns) for _ in range(rows)]
    for row in matrix:
        for position in source.sample(range(columns), outliers):
            row[position] = float(source.choice((-outlier, outlier)))
    return matrix


def means(matrix: Matrix, share: float) -> Reference:
    """Return the mean of each row."""
    values = [math.fsum(row) / len(row) for row in matrix]
    return Reference(values, [share * math.fsum(map(abs, row)) / len(row) for row in matrix])


def rms_norm(matrix: Matrix, scale: Sequence[float], share: float) -> Reference:
    """Return each row divided by its root mean square, times the scale."""
    values: list[float] = []
    for row in matrix:
        factor = 1 / math.sqrt(math.fsum(map(mul, row, row)) / len(row) + EPSILON)
        values += [value * factor * weight for value, weight in zip(row, scale, strict=True)]
    return Reference(values, [share * (abs(value) + 0.01) for value in values])


def layer_norm(matrix: Matrix, scale: Sequence[float], shift: Sequence[float], share: float) -> Reference:
    """Return each row without its mean, divided by its standard deviation, times the scale, plus the shift."""
    values: list[float] = []
    allowed: list[float] = []
    for row in matrix:
        mean = math.fsum(row) / len(row)
        centred = [value - mean for value in row]
        factor = 1 / math.sqrt(math.fsum(map(mul, centred, centred)) / len(row) + EPSILON)
        scaled = [value * factor * weight for value, weight in zip(centred, scale, strict=True)]
        values += [value + offset for value, offset in zip(scaled, shift, strict=True)]
        # Rounding the mean, or the row without it, to the data type costs a share of the mean.
        lost = abs(mean) * factor
        allowed += [share * (abs(value) + abs(offset) + lost) for value, offset in zip(scaled, shift, strict=True)]
    return Reference(values, allowed)


def wide_softmax(matrix: Matrix, share: float) -> Reference:
    """Return the softmax of rows of any length, with a tolerance for each entry."""
    values: list[float] = []
    for row in matrix:
        largest = max(row)
        powers = [math.exp(value - largest) for value in row]
        total = math.fsum(powers)
        values += [power / total for power in powers]
    least = _FLUSHED if share > 1e-3 else 1e-7
    return Reference(values, [share * value + least for value in values])


def attention(
    queries: Sequence[Matrix], keys: Sequence[Matrix], values: Sequence[Matrix], visible: Sequence[int], allowed: float
) -> Reference:
    """Return softmax(Q·Kᵀ/√d)·V of each query, then each of its heads, where heads share keys and values in groups.

    `queries[head][query]`, `keys[group][position]`, `values[group][position]`: vectors. `visible`: for each query, the
    number of positions that it sees. `allowed`: the tolerance.
    """
    group = len(queries) // len(keys)
    width = len(queries[0][0])
    result: list[float] = []
    for position, count in enumerate(visible):
        for head, rows in enumerate(queries):
            seen_keys, seen_values = keys[head // group][:count], values[head // group][:count]
            scores = [math.fsum(map(mul, rows[position], key)) / math.sqrt(width) for key in seen_keys]
            powers = [math.exp(score - max(scores)) for score in scores]
            total = math.fsum(powers)
            result += [math.fsum(map(mul, powers, column)) / total for column in zip(*seen_values, strict=True)]
    return Reference(result, [allowed] * len(result))
