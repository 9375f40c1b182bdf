"""The operations that a proof checks through ggml: those of text models in llama.cpp, with weights in each format.

A product with one column has other kernels than one with many: the first makes tokens, the second reads prompts.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.devices._mechanisms import reference_layers as layers
from backend.devices._mechanisms.ggml import F16, F32, I32
from backend.devices._mechanisms.ggml_blocks import FLOAT32, WeightFormat
from backend.devices._mechanisms.ggml_graph import Build, Input
from backend.devices._mechanisms.reference_math import (
    COARSE,
    PRECISE,
    RIGHT_OUTLIER,
    TO_255,
    Matrix,
    Reference,
    convolution,
    flat,
    fresh,
    product,
    real_matrix,
    row_sums,
    rows_picked,
    table_matrix,
    whole_matrix,
)
from backend.devices._mechanisms.tiled_product import DISTINCT, WIDEST, TiledProduct

_INNER = 512
_WIDE_INNER = 256
WIDE_COLUMNS = (1, 5)  # a step, and few tokens together: they have different kernels
# Kernels may add in float16: 512 roundings cost up to 0.6 % of the products' magnitudes, as simulated in NumPy.
_ROUGH = 4 * COARSE
_GROUP = 32  # inputs that kernels may quantize together
_HEADS, _GROUPS, _WIDTH = 4, 2, 64  # of attention
_CACHE, _PAST = 256, 40  # positions of the cache, and those in use before
_MASK_ROWS = 64  # older versions of ggml require a multiple of 64
_HIDDEN = 8.0  # entries of masked positions
_PRECISE_SUMS = 10  # GGML_PREC_F32, which llama.cpp sets for attention
_ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class Sample:
    """The bytes of the inputs, and a function from the flat result to the entries to compare and their reference."""

    data: Sequence[bytes]
    expect: Callable[[array[float]], tuple[Sequence[float], Reference]]


@dataclass(frozen=True)
class Operation:
    """One operation to check. `dtype`: the data type in the proof's record. `new_sample` returns other inputs."""

    name: str
    dtype: str
    inputs: Sequence[Input]
    build: Build
    new_sample: Callable[[], Sample]
    samples: int = 2  # number of different inputs to check it with
    required: bool = True  # whether engines need it, if they need the data type


def basic_operations() -> Iterator[Operation]:
    """Yield the operations in float32, except the product of real numbers."""
    yield one_column_product(FLOAT32)
    yield large_product(FLOAT32)
    for columns in WIDE_COLUMNS:
        yield wide_product(FLOAT32, columns)
    yield _sums()
    yield _softmax()
    yield _rms_norm()
    yield _rope()
    yield _gather()
    yield _convolution()


def one_column_product(form: WeightFormat) -> Operation:
    """Return a product with weights in a format and one column. Every row is checked."""
    return _product(form, fresh().randrange(520, 584), 1)


def large_product(form: WeightFormat) -> Operation:
    """Return a product beyond 1 MB with weights in a format. Every row is checked."""
    return _product(form, *(fresh().randrange(520, 584) for _ in range(2)))


def medium_product(form: WeightFormat) -> Operation:
    """Return a product of many columns that takes little time. Every row is checked."""
    return _product(form, *(fresh().randrange(65, 129) for _ in range(2)))


def wide_product(form: WeightFormat, columns: int) -> Operation:
    """Return a product with as many rows of weights as the layers of models have. Every row is checked.

    The results stay in the range of float16, in which a card may add them up.
    """
    return replace(_product(form, WIDEST[-1], columns, _WIDE_INNER), samples=1)


def attention_operations() -> Iterator[Operation]:
    """Yield attention with a cache in float16, of a prompt and of one token, which have different kernels."""
    yield _attention("of a prompt", 17)
    yield _attention("of a step", 1)


def real_product() -> Operation:
    """Return a product of real numbers with outliers in float32."""

    def new_sample() -> Sample:
        source = fresh()
        left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
        columns = [list(column) for column in zip(*right, strict=True)]
        reference = product(left, right, COARSE)  # ggml multiplies in float16 if the card supports it
        return Sample([_floats(columns), _floats(left)], lambda got: (got, reference))

    inputs = [Input(F32, (64, 24)), Input(F32, (64, 32))]
    return Operation("MatMul", "float32", inputs, _multiply, new_sample, samples=3)


def timed_product(side: int) -> Operation:
    """Return a square product of integers in float32 whose speed is measured. Every row is checked."""

    def new_sample() -> Sample:
        tiled = TiledProduct.whole(fresh(), (side, side, side), (2, 2))
        return Sample([_joined(tiled.right_transposed), _joined(tiled.left)], tiled.worst_of_rows)

    inputs = [Input(F32, (side, side)), Input(F32, (side, side))]
    return Operation(f"MatMul {side}×{side}", "float32", inputs, _multiply, new_sample, samples=1)


def _product(form: WeightFormat, rows: int, columns: int, inner: int = _INNER) -> Operation:
    def new_sample() -> Sample:
        source = fresh()
        weights = [form.new_row(source, inner) for _ in range(DISTINCT)]
        numbers = [row.numbers for row in weights]
        vectors = min(columns, DISTINCT)
        inputs = whole_matrix(source, vectors, inner, 1) if form.is_whole else _quantizable(vectors, inner)
        tiled = TiledProduct(source, inputs, numbers, columns, rows, 0.0 if form.is_whole else _ROUGH)
        data = [
            weights[position % DISTINCT].data if sign > 0 else weights[position % DISTINCT].negated
            for position, sign in enumerate(tiled.column_signs)
        ]
        return Sample([b"".join(data), _joined(tiled.left)], tiled.worst_of_rows)

    name = f"MatMul {rows}×{inner}×{columns}"
    inputs = [Input(form.kind, (inner, rows)), Input(F32, (inner, columns))]
    return Operation(name, form.dtype, inputs, _multiply, new_sample, required=form.dtype != "bfloat16")


def _quantizable(rows: int, inner: int) -> Matrix:
    """Return a matrix of small integers with one of 127 in each group, so that 8 bits hold each number exactly."""
    source = fresh()
    matrix = whole_matrix(source, rows, inner, 9)
    for row in matrix:
        for start in range(0, inner, _GROUP):
            row[start + source.randrange(_GROUP)] = source.choice((-127.0, 127.0))
    return matrix


def _multiply(base: Any, context: int, tensors: list[int]) -> int:
    result: int = base.ggml_mul_mat(context, *tensors)
    return result


def _sums() -> Operation:
    """Return sums that exceed the range of float16."""

    def new_sample() -> Sample:
        table = table_matrix(fresh(), 3, layers.WIDE, TO_255)
        sums = row_sums(table, 0.0)
        return Sample([_floats(table)], lambda got: (got, sums))

    return Operation(
        f"Sum of {layers.WIDE}",
        "float32",
        [Input(F32, (layers.WIDE, 3))],
        lambda base, context, tensors: base.ggml_sum_rows(context, *tensors),
        new_sample,
        required=False,
    )


def _softmax() -> Operation:
    """Return softmax of scores with a scale and a mask, as attention without its own kernel has it."""
    scale = 0.5

    def new_sample() -> Sample:
        source = fresh()
        table = layers.eighths(source, 2, layers.WIDE, -16, 16) + layers.eighths(source, 1, layers.WIDE, -720, 720)
        mask = [[0.0] * layers.WIDE for _ in table]
        for row in mask:
            seen = source.randrange(layers.WIDE // 2, layers.WIDE)
            row[seen:] = [-math.inf] * (layers.WIDE - seen)
        scores = [
            [scale * value + hidden for value, hidden in zip(row, hides, strict=True)]
            for row, hides in zip(table, mask, strict=True)
        ]
        reference = layers.wide_softmax(scores, 2 * PRECISE)
        return Sample([_floats(table), _halves(mask)], lambda got: (got, reference))

    return Operation(
        f"Softmax of {layers.WIDE}",
        "float32",
        [Input(F32, (layers.WIDE, 3)), Input(F16, (layers.WIDE, 3))],
        lambda base, context, tensors: base.ggml_soft_max_ext(context, *tensors, scale, 0.0),
        new_sample,
        required=False,
    )


def _rms_norm() -> Operation:
    def new_sample() -> Sample:
        table = layers.eighths(fresh(), 3, layers.WIDE, -16, 16, 8)
        reference = layers.rms_norm(table, [1.0] * layers.WIDE, PRECISE)
        return Sample([_floats(table)], lambda got: (got, reference))

    return Operation(
        f"RMSNorm of {layers.WIDE}",
        "float32",
        [Input(F32, (layers.WIDE, 3))],
        lambda base, context, tensors: base.ggml_rms_norm(context, *tensors, layers.EPSILON),
        new_sample,
        required=False,
    )


def _rope() -> Operation:
    """Return rotary position embedding of neighbouring pairs. Sine and cosine of large angles lose bits."""
    tokens = 17

    def new_sample() -> Sample:
        source = fresh()
        table = layers.eighths(source, tokens, _HEADS * _WIDTH, -16, 16)
        positions = [source.randrange(512) for _ in range(tokens)]
        values: list[float] = []
        for row, position in zip(table, positions, strict=True):
            for place in range(0, len(row), 2):
                angle = position * _ROPE_BASE ** -(place % _WIDTH / _WIDTH)
                sine, cosine = math.sin(angle), math.cos(angle)
                values += [row[place] * cosine - row[place + 1] * sine, row[place] * sine + row[place + 1] * cosine]
        reference = Reference(values, [COARSE] * len(values))
        return Sample([_floats(table), struct.pack(f"={tokens}i", *positions)], lambda got: (got, reference))

    return Operation(
        "RoPE",
        "float32",
        [Input(F32, (_WIDTH, _HEADS, tokens)), Input(I32, (tokens,))],
        lambda base, context, tensors: base.ggml_rope(context, *tensors, _WIDTH, 0),
        new_sample,
        required=False,
    )


def _gather() -> Operation:
    def new_sample() -> Sample:
        source = fresh()
        table, order = real_matrix(source, 24, 64, 4), [source.randrange(24) for _ in range(40)]
        reference = rows_picked(table, order)
        return Sample([_floats(table), struct.pack("=40i", *order)], lambda got: (got, reference))

    inputs = [Input(F32, (64, 24)), Input(I32, (40,))]
    return Operation(
        "Gather",
        "float32",
        inputs,
        lambda base, context, tensors: base.ggml_get_rows(context, *tensors),
        new_sample,
        required=False,
    )


def _convolution() -> Operation:
    def new_sample() -> Sample:
        source = fresh()
        image = [whole_matrix(source, 10, 10, 4, outliers=1) for _ in range(3)]
        filters = [[whole_matrix(source, 3, 3, 4) for _ in range(3)] for _ in range(4)]
        reference = convolution(image, filters, COARSE)
        return Sample([_floats(filters), _floats(image)], lambda got: (got, reference))

    return Operation(
        "Conv2d",
        "float32",
        [Input(F32, (3, 3, 3, 4)), Input(F32, (10, 10, 3))],
        lambda base, context, tensors: base.ggml_conv_2d(context, *tensors, 1, 1, 0, 0, 1, 1),
        new_sample,
        required=False,
    )


def _attention(what: str, tokens: int) -> Operation:
    def build(base: Any, context: int, tensors: list[int]) -> int:
        scale = 1 / math.sqrt(_WIDTH)
        result: int = base.ggml_flash_attn_ext(context, *tensors, scale, 0.0, 0.0)
        base.ggml_flash_attn_ext_set_prec(result, _PRECISE_SUMS)
        return result

    def new_sample() -> Sample:
        source = fresh()
        seen = _PAST + tokens
        query = [layers.eighths(source, tokens, _WIDTH, -16, 16) for _ in range(_HEADS)]
        key, value = ([layers.eighths(source, seen, _WIDTH, -16, 16) for _ in range(_GROUPS)] for _ in range(2))
        visible = [_PAST + position + 1 for position in range(tokens)]
        reference = layers.attention(query, key, value, visible, 12 * COARSE)
        hidden = [[_HIDDEN] * _WIDTH] * (_CACHE - seen)
        mask = [[0.0] * count + [-math.inf] * (_CACHE - count) for count in visible]
        mask += [[-math.inf] * _CACHE] * (_MASK_ROWS - tokens)
        cache = [_halves([head + hidden for head in heads]) for heads in (key, value)]
        return Sample([_floats(query), *cache, _halves(mask)], lambda got: (got, reference))

    cache = Input(F16, (_WIDTH, _CACHE, _GROUPS))
    inputs = [Input(F32, (_WIDTH, tokens, _HEADS)), cache, cache, Input(F16, (_CACHE, _MASK_ROWS))]
    return Operation(f"Attention {what}", "float16", inputs, build, new_sample, required=False)


def _floats(values: object) -> bytes:
    return array("f", flat(values)).tobytes()


def _halves(values: object) -> bytes:
    numbers = flat(values)
    return struct.pack(f"={len(numbers)}e", *numbers)


def _joined(rows: Sequence[array[float]]) -> bytes:
    return b"".join(row.tobytes() for row in rows)
