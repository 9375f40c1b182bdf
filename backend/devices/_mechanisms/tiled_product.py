"""A matrix product larger than any tile of a kernel, whose every row is known at the cost of a small product.

The left factor repeats a few random rows and the right one a few random columns, each time with a random sign. Their
number is a prime, so that no tile of a kernel repeats them: a row, a column or a tile that is missing, in the wrong
place or left over from an earlier run has wrong entries.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from operator import mul, sub

from backend.devices._mechanisms.reference_math import Matrix, Reference, whole_matrix

DISTINCT = 23  # rows and columns
# Rows, inner size and columns of a product as wide as the layers of models, which have other kernels.
WIDEST = (5, 33, 4099)
# The largest factors of the widest product in float32: results exceed the range of float16, the factors fit bfloat16.
BEYOND_HALF = 255
Rows = list["array[float]"]


class TiledProduct:
    """The factors and the product, as rows of 32-bit floats. Equal rows are one object.

    `left` and `right`: the distinct rows and columns. `rows` and `columns`: how many the factors have. `share`:
    optional, the tolerance as a share of the products' magnitudes. Default: 0, as products of integers are exact.
    """

    def __init__(
        self, source: random.Random, left: Matrix, right: Matrix, rows: int, columns: int, share: float = 0.0
    ) -> None:
        self.rows, self.columns = rows, columns
        self._left, self._right = left, right
        self.row_signs, self.column_signs = _signs(source, rows), _signs(source, columns)
        small = [[sum(map(mul, row, column)) for column in right] for row in left]
        self.want = self._signed_rows([self._signed_columns(row) for row in small])
        self._allowed = [share * max(sums) for sums in _magnitudes(left, right)] if share else []

    @classmethod
    def whole(
        cls,
        source: random.Random,
        shape: tuple[int, int, int],
        largest: tuple[int, int],
        outliers: int = 0,
        share: float = 0.0,
    ) -> TiledProduct:
        """Return a product of integers.

        `shape`: rows, inner dimension, columns. `largest`: the largest entries of both factors: choose them so that the
        number formats that are checked hold every sum. `outliers`: optional, entries that are 64 times as large.
        """
        rows, inner, columns = shape
        left = whole_matrix(source, min(rows, DISTINCT), inner, largest[0], outliers)
        right = whole_matrix(source, DISTINCT, inner, largest[1])
        return cls(source, left, right, rows, columns, share)

    @property
    def left(self) -> Rows:
        """The left factor."""
        return self._signed_rows([array("f", row) for row in self._left])

    @property
    def right_transposed(self) -> Rows:
        """The right factor's columns."""
        return _signed([array("f", column) for column in self._right], self.column_signs)

    def allowed(self, row: int) -> float:
        """Return the tolerance of a row's entries."""
        return self._allowed[row % len(self._allowed)] if self._allowed else 0.0

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
        """Repeat a row with the signs of the columns. Adding 0 turns -0 into 0, as in sums of products."""
        repeated = (list(row) * (self.columns // len(row) + 1))[: self.columns]
        return array("f", (value + 0.0 for value in map(mul, repeated, self.column_signs)))

    def _signed_rows(self, rows: Rows) -> Rows:
        return _signed(rows, self.row_signs)


def _magnitudes(left: Matrix, right: Matrix) -> Matrix:
    """Return the sums of the products' magnitudes, by row and column."""
    heights = [list(map(abs, column)) for column in right]
    return [[sum(map(mul, row, height)) for height in heights] for row in (list(map(abs, row)) for row in left)]


def _signs(source: random.Random, count: int) -> list[float]:
    return source.choices((-1.0, 1.0), k=count)


def _signed(rows: Rows, signs: Sequence[float]) -> Rows:
    negative = [array("f", (0.0 - value for value in row)) for row in rows]
    return [(rows if sign > 0 else negative)[position % len(rows)] for position, sign in enumerate(signs)]


def _worst(row: Sequence[float], want: Sequence[float]) -> int:
    """Return the position of the largest error, or of an entry that is NaN or infinite."""
    errors = list(map(abs, map(sub, row, want)))
    if not math.isfinite(sum(errors)):
        return next(position for position, error in enumerate(errors) if not math.isfinite(error))
    return errors.index(max(errors))
