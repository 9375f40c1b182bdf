"""Quantized products of ONNX Runtime, as its converters write them, with exact results.

The inputs are such that quantization loses nothing, so that a wrong unit shows: in each group that a kernel may
quantize together, the largest input is the largest 8-bit integer. Weights of 8 bits stay below 64: products of larger
ones saturate on processors without VNNI (ONNX Runtime's documentation, "Quantize ONNX models").
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from backend.common.formats.onnx.writer import Node, Value
from backend.devices._mechanisms.onnx_test_models import Operation, Sample, columns_of, exactly, weight
from backend.devices._mechanisms.reference_math import COARSE, PRECISE, Matrix, Reference, fresh, product, whole_matrix
from backend.devices._mechanisms.tiled_product import WIDEST, TiledProduct

BLOCK = 32  # the builder's default
_INNER, _COLUMNS = 128, 56
_TOKENS = (1, 17)  # a step and a prompt, which have different kernels
_FEW = (1, 5)  # tokens of the widest products
_WIDE = (2 * BLOCK, 65 * 64)  # inner size, and columns: as many as layers of models have, and a multiple of any block
_CONTRIB = "com.microsoft"
_LARGEST_8_BIT = 63


def int8_operations() -> Iterator[list[Operation]]:
    """Yield the products of 8-bit integers that ONNX Runtime's quantization writes, then blocks of 8-bit weights."""
    yield [_integer_product(), _integer_product(WIDEST), _dynamic_product(), _static_product(), _wide_static_product()]
    yield [
        *(_blocks("int8", "float32", 8, tokens, accuracy_level=4) for tokens in _TOKENS),
        *(_tiled_blocks("int8", "float32", 8, (tokens, *_WIDE), accuracy_level=4) for tokens in _FEW),
    ]


def int4_operations(accuracy_level: int, rounds_inputs: bool) -> Iterator[list[Operation]]:
    """Yield products with 4-bit weights, in float32 and float16, with the accuracy level that models have."""
    source = fresh()
    large = source.randrange(520, 584), 8 * BLOCK, source.randrange(520, 584)
    for real in ("float32", "float16"):
        shapes = [(tokens, *_WIDE) for tokens in _FEW] + [large] * (real == "float32")
        yield [
            *(_blocks("int4", real, 4, tokens, accuracy_level, rounds_inputs) for tokens in _TOKENS),
            *(_tiled_blocks("int4", real, 4, shape, accuracy_level) for shape in shapes),
        ]


def _integer_product(shape: tuple[int, int, int] | None = None) -> Operation:
    """Return MatMulInteger with a zero point. Every row is checked. `shape`: default is a random large one."""
    source = fresh()
    rows, inner, columns = shape or (source.randrange(520, 584), _INNER, source.randrange(520, 584))
    tiled = TiledProduct.whole(source, (rows, inner, columns), (127, _LARGEST_8_BIT))
    zero = 128

    def new_sample() -> Sample:
        import numpy

        return Sample({"a": numpy.array(tiled.left) + zero}, tiled.worst_of_rows)

    weights = [
        weight("b", "int8", [inner, columns], columns_of(tiled.right_transposed)),
        weight("zero", "uint8", [], zero),
    ]
    return Operation(
        f"MatMulInteger {rows}×{inner}×{columns}",
        "int8",
        [Node("MatMulInteger", ["a", "b", "zero"], ["y"])],
        [Value("a", "uint8", [rows, inner])],
        [Value("y", "int32", [rows, columns])],
        new_sample,
        weights,
        samples=1,
        required=False,
    )


def _dynamic_product() -> Operation:
    """Return a product as dynamic quantization writes it: the input is quantized, the product scaled back."""
    right = whole_matrix(fresh(), _INNER, _COLUMNS, _LARGEST_8_BIT)

    def new_sample() -> Sample:
        left = whole_matrix(fresh(), 17, _INNER, 127)
        left[0][:2] = -127.0, 128.0  # 255 steps of 1
        return Sample({"x": left}, exactly(product(left, right, PRECISE)))

    nodes = [
        Node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        Node("MatMulInteger", ["q", "b", "zero"], ["whole"]),
        Node("Cast", ["whole"], ["real"], {"to": 1}),
        Node("Mul", ["real", "scale"], ["y"]),
    ]
    return Operation(
        "DynamicQuantizeLinear and MatMulInteger",
        "int8",
        nodes,
        [Value("x", "float32", [17, _INNER])],
        [Value("y", "float32", [17, _COLUMNS])],
        new_sample,
        [weight("b", "int8", [_INNER, _COLUMNS], right)],
        required=False,
    )


def _static_product() -> Operation:
    """Return QLinearMatMul, as static quantization writes it. Halves may be rounded either way."""
    right = whole_matrix(fresh(), _INNER, _COLUMNS, _LARGEST_8_BIT)

    def new_sample() -> tuple[Matrix, Sequence[float]]:
        left = whole_matrix(fresh(), 17, _INNER, 121)
        return left, product(left, right, 0.0).values

    return _linear_product((17, _INNER, _COLUMNS), right, 121, 2.0**-10, new_sample)


def _wide_static_product() -> Operation:
    """Return QLinearMatMul with as many columns as layers of models have, which has other kernels."""
    tiled = TiledProduct.whole(fresh(), WIDEST, (127, _LARGEST_8_BIT))
    sums = [value for row in tiled.want for value in row]
    operation = _linear_product(WIDEST, columns_of(tiled.right_transposed), 128, 2.0**-9, lambda: (tiled.left, sums))
    return replace(operation, name=f"QLinearMatMul {'×'.join(map(str, WIDEST))}", samples=1)


def _linear_product(
    shape: tuple[int, int, int],
    right: Any,
    zero_a: int,
    scale: float,
    new_sample: Callable[[], tuple[Sequence[Sequence[float]], Sequence[float]]],
) -> Operation:
    """Return QLinearMatMul. `new_sample` returns the left factor, without its zero point, and the flat product."""
    rows, inner, columns = shape
    zero_y = 131

    def sample() -> Sample:
        left, sums = new_sample()
        values = [min(255.0, max(0.0, total * scale + zero_y)) for total in sums]
        whole = [[int(value) + zero_a for value in row] for row in left]
        return Sample({"a": whole}, exactly(Reference(values, [0.501] * len(values))))

    names = ["a", "one", "zero_a", "b", "one", "zero_b", "step", "zero_y"]
    weights = [
        weight("b", "int8", [inner, columns], right),
        weight("one", "float32", [], 1.0),
        weight("zero_a", "uint8", [], zero_a),
        weight("zero_b", "int8", [], 0),
        weight("step", "float32", [], 1 / scale),
        weight("zero_y", "uint8", [], zero_y),
    ]
    return Operation(
        "QLinearMatMul",
        "int8",
        [Node("QLinearMatMul", names, ["y"])],
        [Value("a", "uint8", [rows, inner])],
        [Value("y", "uint8", [rows, columns])],
        sample,
        weights,
        required=False,
    )


def _blocks(
    dtype: str, real: str, bits: int, tokens: int, accuracy_level: int, rounds_inputs: bool = False
) -> Operation:
    """Return MatMulNBits: weights of few bits, in blocks of the inner dimension with a scale each.

    The prompt's weights have zero points, the step's are symmetric.
    """
    source = fresh()
    middle, largest = 1 << (bits - 1), (1 << (bits - 1)) if bits == 4 else _LARGEST_8_BIT
    blocks = _INNER // BLOCK
    zeros = [source.randint(middle - 3, middle + 3) if tokens > 1 else middle for _ in range(_COLUMNS * blocks)]
    scales = [2.0 ** source.randint(-4, -1) for _ in range(_COLUMNS * blocks)]
    whole = [[source.randint(middle - largest, middle + largest - 1) for _ in range(_INNER)] for _ in range(_COLUMNS)]
    columns = [
        [
            (value - zeros[number * blocks + position // BLOCK]) * scales[number * blocks + position // BLOCK]
            for position, value in enumerate(column)
        ]
        for number, column in enumerate(whole)
    ]
    right = [list(row) for row in zip(*columns, strict=True)]
    share = 4 * COARSE if real == "float16" or rounds_inputs else PRECISE  # kernels may add in float16

    def new_sample() -> Sample:
        left = _quantizable(fresh(), tokens)
        return Sample({"x": left}, exactly(product(left, right, share)))

    weights = _block_weights(bits, real, whole, scales)
    if tokens > 1:
        packed = [_packed(zeros[number * blocks : (number + 1) * blocks], bits) for number in range(_COLUMNS)]
        weights.append(weight("zeros", "uint8", [_COLUMNS * len(packed[0])], packed))
    return _block_product(dtype, real, bits, (tokens, _INNER, _COLUMNS), accuracy_level, weights, new_sample)


def _tiled_blocks(dtype: str, real: str, bits: int, shape: tuple[int, int, int], accuracy_level: int) -> Operation:
    """Return MatMulNBits of integers in symmetric blocks. Every row is checked."""
    share = 4 * COARSE if real == "float16" else PRECISE  # the scales of quantized inputs are not exact
    tiled = TiledProduct.whole(fresh(), shape, (1, 7), share=share)
    middle = 1 << (bits - 1)
    whole = _each_once(tiled.right_transposed, lambda column: [int(value) + middle for value in column])
    weights = _block_weights(bits, real, whole, [1.0] * (shape[2] * shape[1] // BLOCK))
    operation = _block_product(
        dtype, real, bits, shape, accuracy_level, weights, lambda: Sample({"x": tiled.left}, tiled.worst_of_rows)
    )
    return replace(operation, samples=1)


def _block_weights(bits: int, real: str, whole: Sequence[Sequence[int]], scales: Sequence[float]) -> list[Any]:
    columns, blocks = len(whole), len(whole[0]) // BLOCK
    data = _each_once(whole, lambda column: _packed(column, bits))
    return [
        weight("b", "uint8", [columns, blocks, BLOCK * bits // 8], data),
        weight("scales", real, [columns * blocks], scales),
    ]


def _block_product(
    dtype: str,
    real: str,
    bits: int,
    shape: tuple[int, int, int],
    accuracy_level: int,
    weights: list[Any],
    new_sample: Callable[[], Sample],
) -> Operation:
    rows, inner, columns = shape
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": BLOCK, "accuracy_level": accuracy_level}
    return Operation(
        f"MatMulNBits {rows}×{inner}×{columns} of {real}",
        dtype,
        [Node("MatMulNBits", ["x", *(constant.name for constant in weights)], ["y"], attributes, _CONTRIB)],
        [Value("x", real, [rows, inner])],
        [Value("y", real, [rows, columns])],
        new_sample,
        weights,
        required=real == "float32",
    )


def _quantizable(source: random.Random, rows: int) -> Matrix:
    """Return a matrix of small integers with one of 127 in each block."""
    matrix = whole_matrix(source, rows, _INNER, 9)
    for row in matrix:
        for start in range(0, _INNER, BLOCK):
            row[start + source.randrange(BLOCK)] = source.choice((-127.0, 127.0))
    return matrix


def _each_once(columns: Sequence[Any], convert: Callable[[Any], list[int]]) -> list[list[int]]:
    """Convert each column. Equal columns that are one object are converted once."""
    converted = {key: convert(column) for key, column in {id(column): column for column in columns}.items()}
    return [converted[id(column)] for column in columns]


def _packed(values: Sequence[int], bits: int) -> list[int]:
    """Return bytes that hold the values; of two 4-bit values the first is in the lower half."""
    if bits == 8:
        return list(values)
    return [low | high << 4 for low, high in zip(values[::2], [*values[1::2], 0], strict=False)]
