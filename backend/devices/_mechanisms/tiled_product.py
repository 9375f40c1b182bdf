"""A matrix product larger than any tile of a kernel, whose every row is known at the cost of a small product.

Both factors repeat a small random tile of integers, and each row of the left and each column of the right factor has a
random sign. The side of the tile is a prime, so that no tile of a kernel repeats it: a row, a column or a tile that is
missing, in the wrong place or left over from an earlier run has wrong entries.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from operator import mul, sub

from backend.devices._mechanisms.reference_math import Matrix, Reference, whole_matrix

_SIDE = 37
Rows = list["array[float]"]


class TiledProduct:
    """The factors and the product, as rows of 32-bit floats. Equal rows are one object.

    `shape`: rows, inner dimension, columns. `largest`: the largest entries of both factors: choose them so that the
    number formats that are checked hold every sum. `outliers`: optional, entries of the left tile that are 64 times as
    large. `share`: optional, the tolerance as a share of the products' magnitudes. Default: 0, as integers are exact.
    """

    def __init__(
        self,
        source: random.Random,
        shape: tuple[int, int, int],
        largest: tuple[int, int],
        outliers: int = 0,
        share: float = 0.0,
    ) -> None:
        self.rows, self.inner, self.columns = shape
        tile_a = whole_matrix(source, _SIDE, _SIDE, largest[0], outliers)
        tile_b = whole_matrix(source, _SIDE, _SIDE, largest[1])
        self._row_signs, self._column_signs = _signs(source, self.rows), _signs(source, self.columns)
        self._tile_b = tile_b
        counts = [self.inner // _SIDE + (position < self.inner % _SIDE) for position in range(_SIDE)]
        weighted = [[count * value for count, value in zip(counts, row, strict=True)] for row in tile_a]
        columns = list(zip(*tile_b, strict=True))
        small = [[sum(map(mul, row, column)) for column in columns] for row in weighted]
        self.left = self._signed_rows([_repeat(row, self.inner) for row in tile_a])
        self.want = self._signed_rows([self._signed_columns(row) for row in small])
        self._allowed = [share * max(sums) for sums in _magnitudes(weighted, columns)] if share else []

    @property
    def right(self) -> Rows:
        """The right factor."""
        rows = [self._signed_columns(row) for row in self._tile_b]
        return [rows[position % _SIDE] for position in range(self.inner)]

    @property
    def right_transposed(self) -> Rows:
        """The right factor's columns."""
        columns = [_repeat(column, self.inner) for column in zip(*self._tile_b, strict=True)]
        negative = [array("f", (-value for value in column)) for column in columns]
        return [
            (columns if sign > 0 else negative)[position % _SIDE] for position, sign in enumerate(self._column_signs)
        ]

    def allowed(self, row: int) -> float:
        """Return the tolerance of a row's entries."""
        return self._allowed[row % _SIDE] if self._allowed else 0.0

    def worst_of_rows(self, got: array[float]) -> tuple[list[float], Reference]:
        """Return the worst entry of each row of a flat result of 32-bit floats, and what these entries should be."""
        if len(got) != self.rows * self.columns:  # the comparison reports the wrong number of entries
            return got.tolist(), Reference([0.0] * self.rows * self.columns, [0.0] * self.rows * self.columns)
        values, expected = [], []
        right = {id(row): row.tobytes() for row in self.want}
        for number, want in enumerate(self.want):
            row = got[number * self.columns : (number + 1) * self.columns]
            position = 0 if row.tobytes() == right[id(want)] else _worst(row, want)
            values.append(row[position])
            expected.append(want[position])
        return values, Reference(expected, [self.allowed(number) for number in range(self.rows)])

    def _signed_columns(self, row: Sequence[float]) -> array[float]:
        """Repeat a row of the tile with the signs of the columns. Adding 0 turns -0 into 0, as in sums of products."""
        return array("f", (value + 0.0 for value in map(mul, _repeat(row, self.columns), self._column_signs)))

    def _signed_rows(self, rows: Rows) -> Rows:
        negative = [array("f", (0.0 - value for value in row)) for row in rows]
        return [(rows if sign > 0 else negative)[position % _SIDE] for position, sign in enumerate(self._row_signs)]


def _magnitudes(left: Matrix, columns: Sequence[Sequence[float]]) -> Matrix:
    """Return the sums of the products' magnitudes, by row and column."""
    heights = [list(map(abs, column)) for column in columns]
    return [[sum(map(mul, map(abs, row), height)) for height in heights] for row in left]


def _signs(source: random.Random, count: int) -> list[float]:
    return [source.choice((-1.0, 1.0)) for _ in range(count)]


def _repeat(values: Sequence[float], length: int) -> array[float]:
    return (array("f", values) * (length // len(values) + 1))[:length]


def _worst(row: Sequence[float], want: Sequence[float]) -> int:
    """Return the position of the largest error, or of an entry that is NaN or infinite."""
    errors = list(map(abs, map(sub, row, want)))
    if not math.isfinite(sum(errors)):
        return next(position for position, error in enumerate(errors) if not math.isfinite(error))
    return errors.index(max(errors))
