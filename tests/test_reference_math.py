"""References and tolerances of the proofs: they agree with NumPy, accept rounding, and reject every real error."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.device_api import WrongResult
from backend.devices._mechanisms.proof_record import ProofRecorder
from backend.devices._mechanisms.reference_math import (
    COARSE,
    LEFT_OUTLIER,
    PRECISE,
    RIGHT_OUTLIER,
    Reference,
    compare,
    convolution,
    elementwise,
    flat,
    fresh,
    product,
    real_matrix,
    rounded,
    row_sums,
    rows_picked,
    softmax,
    ternary_matrix,
    whole_matrix,
)

numpy: Any = pytest.importorskip("numpy")
SEEDS = range(5)


def within(got: Any, reference: Reference) -> None:
    compare("test", got.reshape(-1).tolist(), reference)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_in_float32_is_within_its_tolerance(seed: int) -> None:
    source = random.Random(seed)
    left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
    reference = product(left, right, PRECISE)
    within(numpy.array(left, numpy.float32) @ numpy.array(right, numpy.float32), reference)
    assert numpy.allclose(reference.values, (numpy.array(left) @ numpy.array(right)).reshape(-1), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_with_rounded_inputs_needs_the_coarse_tolerance(seed: int) -> None:
    source = random.Random(seed)
    left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
    halves = [numpy.array(matrix, numpy.float16).astype(numpy.float32) for matrix in (left, right)]
    rounded = halves[0] @ halves[1]
    within(rounded, product(left, right, COARSE))
    with pytest.raises(WrongResult):
        within(rounded, product(left, right, PRECISE))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_of_integers_is_exact_even_in_float16(seed: int) -> None:
    source = random.Random(seed)
    left, right = whole_matrix(source, 32, 48, 3, outliers=3), whole_matrix(source, 48, 24, 3)
    exact = numpy.array(left, numpy.float64) @ numpy.array(right, numpy.float64)
    assert (exact.astype(numpy.float16) == exact).all(), "float16 holds each of these sums"
    within(exact, product(left, right, 0.0))


def test_one_wrong_unit_in_an_exact_product_is_an_error() -> None:
    source = random.Random(1)
    left, right = whole_matrix(source, 8, 8, 3), whole_matrix(source, 8, 8, 3)
    reference = product(left, right, 0.0)
    got = list(reference.values)
    got[17] += 1
    with pytest.raises(WrongResult, match="in 1 of 64 entries"):
        compare("MatMul", got, reference)


def test_a_convolution_is_numpy_s_correlation() -> None:
    source = random.Random(2)
    image = [whole_matrix(source, 7, 9, 4) for _ in range(2)]
    filters = [[whole_matrix(source, 3, 3, 4) for _ in range(2)] for _ in range(3)]
    windows = numpy.lib.stride_tricks.sliding_window_view(numpy.array(image), (3, 3), axis=(1, 2))
    want = numpy.einsum("cyxab,fcab->fyx", windows, numpy.array(filters))
    reference = convolution(image, filters, COARSE)
    assert len(reference.values) == 3 * 5 * 7
    assert numpy.array_equal(reference.values, want.reshape(-1))
    with pytest.raises(WrongResult):
        flipped = numpy.einsum("cyxab,fcab->fyx", windows, numpy.array(filters)[:, :, ::-1, ::-1])
        within(flipped, reference)


def test_sums_of_rows_find_a_row_that_lost_one_entry() -> None:
    matrix = real_matrix(random.Random(3), 24, 64, outliers=4)
    reference = row_sums(matrix)
    within(numpy.array(matrix, numpy.float32).sum(axis=1), reference)
    short = numpy.array([row[:-1] for row in matrix], numpy.float32).sum(axis=1)
    with pytest.raises(WrongResult):
        within(short, reference)


def test_a_steep_softmax_neither_overflows_nor_loses_its_sum() -> None:
    steep = [[value * 9 for value in row] for row in whole_matrix(random.Random(4), 16, 33, 10)]
    steep[0][0] = 5000.0
    reference = softmax(steep)
    assert all(math.isclose(math.fsum(reference.values[at : at + 33]), 1) for at in range(0, 16 * 33, 33))
    shifted = numpy.array(steep) - numpy.array(steep).max(axis=1, keepdims=True)
    within(numpy.exp(shifted) / numpy.exp(shifted).sum(axis=1, keepdims=True), reference)


def test_a_gather_that_confuses_two_rows_is_an_error() -> None:
    table = real_matrix(random.Random(5), 6, 5, outliers=1)
    order = [3, 3, 0, 5]
    reference = rows_picked(table, order)
    within(numpy.array(table)[order], reference)
    with pytest.raises(WrongResult):
        within(numpy.array(table)[[3, 3, 0, 4]], reference)


@pytest.mark.parametrize("seed", SEEDS)
def test_inputs_hold_their_range_and_their_outliers(seed: int) -> None:
    values = flat(real_matrix(random.Random(seed), 32, 64, 6))
    large = [abs(value) for value in values if abs(value) > 1]
    assert len(large) == 6 and all(LEFT_OUTLIER / 2 <= value <= LEFT_OUTLIER for value in large)
    assert numpy.array_equal(numpy.array(values, numpy.float32), values), "each is a float32"
    integers = flat(whole_matrix(random.Random(seed), 32, 48, 3, outliers=3))
    assert sum(abs(value) == 192 for value in integers) == 3
    assert all(value == int(value) and (abs(value) <= 3 or abs(value) == 192) for value in integers)


def test_two_proofs_never_use_the_same_inputs() -> None:
    assert real_matrix(fresh(), 4, 4, 1) != real_matrix(fresh(), 4, 4, 1)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1.0, 2.0], "returned 2 numbers instead of 3"),
        ([1.0, float("nan"), float("inf")], "2 of 3 entries that are NaN or infinite"),
        ([0.0, 0.0, 0.0], "every entry is 0"),
        ([2.0, 4.0, 6.0], "all are 2 times what they should be"),
        ([1.0, 2.0, 3.5], "off by up to 0.5 in 1 of 3 entries"),
        ([3.0, 2.0, 1.0], "off by up to 2 in 2 of 3 entries"),
    ],
)
def test_an_error_is_described_by_its_kind(got: list[float], expected: str) -> None:
    with pytest.raises(WrongResult) as caught:
        compare("MatMul float32", got, Reference([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]))
    assert expected in str(caught.value) and str(caught.value).startswith("MatMul float32")
    assert ("times what" in str(caught.value)) == ("times what" in expected)


def test_the_reported_entry_is_the_one_closest_to_its_own_tolerance() -> None:
    difference = compare("x", [10.5, 1.009], Reference([10.0, 1.0], [1.0, 0.01]))
    assert difference.allowed == 0.01 and math.isclose(difference.error, 0.009)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    st.integers(0, 11),
    st.floats(0.001, 100),
)
def test_an_error_is_found_exactly_where_it_exceeds_its_tolerance(
    values: list[float], place: int, allowed: float
) -> None:
    place %= len(values)
    reference = Reference(values, [allowed] * len(values))
    near, far = list(values), list(values)
    near[place] += allowed * 0.99
    far[place] += allowed * 1.01
    assert compare("x", near, reference).error <= allowed
    with pytest.raises(WrongResult):
        compare("x", far, reference)


def test_nested_lists_are_flattened_in_order() -> None:
    assert flat([[1, (2, 3.5)], [], 4]) == [1.0, 2.0, 3.5, 4.0]
    assert flat(7) == [7.0]


def test_a_proof_reports_its_worst_product_and_every_operation() -> None:
    recorder = ProofRecorder()
    first = recorder.compare("MatMul", "float32", [1.0], Reference([1.0], [0.1]))
    second = recorder.compare("MatMul", "float32", [1.05], Reference([1.0], [0.1]), gflops=3.0)
    recorder.skip("Conv", "float32", "not implemented\n  at line 5\n" + "x" * 500)
    proof = recorder.proof("all", [first, second], {"library": "1"}, "seen", 3.0)
    assert (proof.max_abs_error, proof.tolerance) == (second.error, 0.1)
    assert [row["operation"] for row in proof.checks] == ["MatMul", "MatMul", "Conv"]
    assert [row.get("gflops") for row in proof.checks] == [None, 3.0, None]
    assert proof.checks[2]["skipped"] == "not implemented" and proof.seconds >= 0


def test_a_wrong_operation_ends_a_proof() -> None:
    recorder = ProofRecorder()
    with pytest.raises(WrongResult, match="MatMul float16 was off"):
        recorder.compare("MatMul", "float16", [2.0], Reference([1.0], [0.1]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_to_16_bits_is_to_the_nearest_and_ties_to_even(dtype: str) -> None:
    source = random.Random(7)
    matrix = real_matrix(source, 20, 30, 9)
    got = numpy.array(rounded(matrix, dtype))
    exact = numpy.array(matrix, numpy.float32)
    if dtype == "float16":
        assert (got == exact.astype(numpy.float16)).all()
    else:
        kept = exact.view(numpy.uint32) >> 16 << 16
        above = (kept + (1 << 16)).view(numpy.float32)
        assert ((got == kept.view(numpy.float32)) | (got == above)).all()
        assert (abs(got - exact) <= abs(exact) * 2.0**-8).all()
        assert rounded([[1.00390625, 1.01171875, -1.00390625]], dtype) == [[1.0, 1.015625, -1.0]]
    assert rounded(matrix, "float32") is matrix


def test_long_sums_of_few_ones_are_exact_in_8_bits() -> None:
    for seed in range(50):
        matrix = ternary_matrix(random.Random(seed), 4, 4096, zeros=3)
        assert {value for row in matrix for value in row} == {-1.0, 0.0, 1.0}
        assert max(abs(sum(row)) for row in matrix) < 256


def test_a_function_of_each_entry_has_a_tolerance_for_both_sides() -> None:
    reference = elementwise([[2.0, -4.0]], lambda value: value / 2, 0.1)
    assert reference.values == [1.0, -2.0] and reference.allowed == pytest.approx([0.30001, 0.60001])
