"""Products whose every row is known: right for NumPy, and any row, column or tile that is wrong is found."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from backend.common.device_api import WrongResult
from backend.devices._mechanisms.reference_math import compare
from backend.devices._mechanisms.tiled_product import TiledProduct


def computed(tiled: TiledProduct) -> Any:
    return numpy.array(tiled.left) @ numpy.array(tiled.right_transposed).T


def flat(result: Any) -> array[float]:
    return array("f", result.astype("f4").tobytes())


@pytest.mark.parametrize("seed", range(4))
def test_numpy_computes_what_is_expected(seed: int) -> None:
    source = random.Random(seed)
    shape = (source.randrange(1, 300), source.randrange(1, 300), source.randrange(1, 300))
    tiled = TiledProduct.whole(source, shape, (3, 5), outliers=2)
    values, reference = tiled.worst_of_rows(flat(computed(tiled)))
    assert len(values) == shape[0] and compare("MatMul", values, reference).error == 0


def missing_row(result: Any) -> None:
    result[-1] = 0


def missing_tile(result: Any) -> None:
    result[256:288, 192:] = 0


def stale_tile(result: Any) -> None:
    result[128:192, :64] = result[64:128, :64]


def moved_columns(result: Any) -> None:
    result[:] = numpy.roll(result, 64, axis=1)


def one_entry(result: Any) -> None:
    result[200, 100] += 1


def not_a_number(result: Any) -> None:
    result[17, 3] = numpy.nan


@pytest.mark.parametrize("spoil", [missing_row, missing_tile, stale_tile, moved_columns, one_entry, not_a_number])
def test_a_wrong_part_is_found(spoil: Callable[[Any], None]) -> None:
    tiled = TiledProduct.whole(random.Random(1), (300, 290, 310), (3, 3))
    result = computed(tiled)
    spoil(result)
    with pytest.raises(WrongResult, match="off by up to|NaN"):
        compare("MatMul", *tiled.worst_of_rows(flat(result)))


def test_a_part_of_the_inner_dimension_that_is_left_out_is_found() -> None:
    tiled = TiledProduct.whole(random.Random(1), (300, 290, 310), (3, 3))
    result = numpy.array(tiled.left)[:, :256] @ numpy.array(tiled.right_transposed).T[:256]
    with pytest.raises(WrongResult):
        compare("MatMul", *tiled.worst_of_rows(flat(result)))


def test_a_result_of_another_size_is_found() -> None:
    tiled = TiledProduct.whole(random.Random(1), (30, 20, 10), (3, 3))
    with pytest.raises(WrongResult, match="returned 299 numbers instead of 300"):
        compare("MatMul", *tiled.worst_of_rows(array("f", bytes(4 * 299))))


def test_rounded_sums_are_within_a_share() -> None:
    tiled = TiledProduct.whole(random.Random(2), (100, 290, 110), (3, 3), share=4e-3)
    rounded = (computed(tiled)).astype("f2")
    compare("MatMul", *tiled.worst_of_rows(flat(rounded)))
    with pytest.raises(WrongResult):
        compare("MatMul", *tiled.worst_of_rows(flat(rounded * 0.5)))
