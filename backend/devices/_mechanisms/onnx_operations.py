"""The operations that a proof checks through ONNX Runtime, by data type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from backend.common.formats.onnx.writer import Node, Value
from backend.devices._mechanisms import reference_layers as layers
from backend.devices._mechanisms.onnx_test_models import Operation, Sample, columns_of, exactly, weight
from backend.devices._mechanisms.reference_math import (
    COARSE,
    PRECISE,
    RIGHT_OUTLIER,
    Matrix,
    Reference,
    convolution,
    fresh,
    product,
    real_matrix,
    row_sums,
    rows_picked,
    softmax,
    whole_matrix,
)
from backend.devices._mechanisms.tiled_product import BEYOND_HALF, WIDEST, TiledProduct

# Shares of a result that rounding to the data type may change: 4 and 3 units in the last place.
_SHARES = {"float32": PRECISE, "float16": COARSE, "bfloat16": 2.4e-2}
_CONTRIB = "com.microsoft"
_HEADS, _GROUPS, _WIDTH = 4, 2, 64  # of attention
_PROMPT, _PAST = 17, 24
_MASKED = -65504.0  # float16's least number, by which models hide positions
_MODEST_OUTLIER = 16  # its square, summed, stays in the range of float16


def share_of(dtype: str, rounds_inputs: bool) -> float:
    """Return the tolerance of a data type, as a share of the result."""
    return max(_SHARES[dtype], COARSE) if rounds_inputs else _SHARES[dtype]


def basic_operations(rounds_inputs: bool) -> Iterator[list[Operation]]:
    """Yield the operations in float32, except the product of real numbers, in groups that a provider supports alike."""
    yield [_convolution(), _mean(), _softmax(), _gather(), *_layers("float32", rounds_inputs)]
    yield _attentions("float32", rounds_inputs)


def half_operations(dtype: str, rounds_inputs: bool) -> Iterator[list[Operation]]:
    """Yield the operations in float16 or bfloat16, in groups. A product is the first."""
    yield [small_whole_product(dtype), *_layers(dtype, rounds_inputs)]
    yield _attentions(dtype, rounds_inputs)


def _layers(dtype: str, rounds_inputs: bool) -> list[Operation]:
    """Return the layers of models: a large product, a wide one, means, norms, softmax."""
    share = share_of(dtype, rounds_inputs)
    return [
        large_product(dtype, COARSE if rounds_inputs and dtype == "float32" else 0.0),
        _wide_product(dtype, rounds_inputs),
        _wide_mean(dtype, share),
        _wide_softmax(dtype, share),
        _rms_norm(dtype, share, _MODEST_OUTLIER if rounds_inputs else layers.OUTLIER),
        _layer_norm(dtype, share),
    ]


def _attentions(dtype: str, rounds_inputs: bool) -> list[Operation]:
    share = share_of(dtype, rounds_inputs)
    return [_prompt_attention(dtype, share), _step_attention(dtype, share)]


def real_product(share: float) -> Operation:
    """Return a product of real numbers with outliers in float32."""

    def new_sample() -> Sample:
        source = fresh()
        left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
        return Sample({"a": left, "b": right}, exactly(product(left, right, share)))

    return replace(_small_product("float32", 64, new_sample), samples=3)


def small_whole_product(dtype: str) -> Operation:
    """Return a product of integers: its sums of magnitudes are below 2,048, so float16 holds each partial sum.

    bfloat16 holds integers of up to 256, so there are no outliers in it.
    """
    outliers = 0 if dtype == "bfloat16" else 3

    def new_sample() -> Sample:
        source = fresh()
        left, right = whole_matrix(source, 32, 48, 3, outliers), whole_matrix(source, 48, 24, 3 if outliers else 1)
        return Sample({"a": left, "b": right}, exactly(product(left, right, 0.0)))

    return replace(_small_product(dtype, 48, new_sample), required=dtype != "bfloat16")


def _small_product(dtype: str, inner: int, new_sample: Any) -> Operation:
    inputs = [Value("a", dtype, [32, inner]), Value("b", dtype, [inner, 24])]
    return Operation(
        "MatMul", dtype, [Node("MatMul", ["a", "b"], ["y"])], inputs, [Value("y", dtype, [32, 24])], new_sample
    )


def large_product(dtype: str, share: float) -> Operation:
    """Return a product beyond 1 MB with a constant right factor, as models have. Every row is checked."""
    source = fresh()
    least = 520 if dtype == "float32" else 730
    rows, columns = (source.randrange(least, least + 64) for _ in range(2))
    inner = source.randrange(257, 320)
    largest, outliers = ((3, 3), 2) if dtype == "float32" else ((1, 1), 0)
    return _constant_product(dtype, TiledProduct.whole(source, (rows, inner, columns), largest, outliers, share))


def _wide_product(dtype: str, rounds_inputs: bool) -> Operation:
    """Return a product of few rows and many columns.

    Results in float32 exceed the range of float16, except with providers that may compute float32 in float16.
    """
    largest = BEYOND_HALF if dtype == "float32" and not rounds_inputs else 1
    share = COARSE if dtype == "float32" and rounds_inputs else 0.0
    return _constant_product(dtype, TiledProduct.whole(fresh(), WIDEST, (largest, largest), share=share))


def _constant_product(dtype: str, tiled: TiledProduct) -> Operation:
    """Return a product with a constant right factor, as models have."""
    right = tiled.right_transposed
    rows, inner, columns = tiled.rows, len(right[0]), tiled.columns
    return Operation(
        f"MatMul {rows}×{inner}×{columns}",
        dtype,
        [Node("MatMul", ["a", "b"], ["y"])],
        [Value("a", dtype, [rows, inner])],
        [Value("y", dtype, [rows, columns])],
        lambda: Sample({"a": tiled.left}, tiled.worst_of_rows),
        [weight("b", dtype, [inner, columns], columns_of(right))],
        samples=1,
    )


def timed_product(side: int, rounds_inputs: bool) -> Operation:
    """Return a square product in float32 whose speed is measured. Every row is checked."""
    tiled = TiledProduct.whole(fresh(), (side, side, side), (3, 3), 2, COARSE if rounds_inputs else 0.0)
    inputs = [Value("a", "float32", [side, side]), Value("b", "float32", [side, side])]
    return Operation(
        f"MatMul {side}×{side}",
        "float32",
        [Node("MatMul", ["a", "b"], ["y"])],
        inputs,
        [Value("y", "float32", [side, side])],
        lambda: Sample({"a": tiled.left, "b": columns_of(tiled.right_transposed)}, tiled.worst_of_rows),
        samples=1,
    )


def _convolution() -> Operation:
    inputs = [Value("a", "float32", [1, 3, 10, 10]), Value("b", "float32", [4, 3, 3, 3])]

    def new_sample() -> Sample:
        source = fresh()
        image = [whole_matrix(source, 10, 10, 4, outliers=1) for _ in range(3)]
        filters = [[whole_matrix(source, 3, 3, 4) for _ in range(3)] for _ in range(4)]
        return Sample({"a": [image], "b": filters}, exactly(convolution(image, filters, COARSE)))

    node = Node("Conv", ["a", "b"], ["y"], {"kernel_shape": [3, 3]})
    return Operation(
        "Conv", "float32", [node], inputs, [Value("y", "float32", [1, 4, 8, 8])], new_sample, required=False
    )


def _mean() -> Operation:
    def new_sample() -> Sample:
        table = real_matrix(fresh(), 24, 64, outliers=4)
        sums = row_sums(table)
        reference = Reference([value / 64 for value in sums.values], [5 * allowed / 64 for allowed in sums.allowed])
        return Sample({"x": table}, exactly(reference))

    node = Node("ReduceMean", ["x"], ["y"], {"axes": [1]})
    return _unary("ReduceMean", "float32", node, [24, 64], [24, 1], new_sample)


def _softmax() -> Operation:
    def new_sample() -> Sample:
        steep = [[value * 9 for value in row] for row in whole_matrix(fresh(), 16, 33, 10)]
        return Sample({"x": steep}, exactly(softmax(steep)))

    return _unary("Softmax", "float32", Node("Softmax", ["x"], ["y"]), [16, 33], [16, 33], new_sample)


def _gather() -> Operation:
    inputs = [Value("a", "float32", [24, 65]), Value("b", "int64", [40])]

    def new_sample() -> Sample:
        source = fresh()
        table, order = real_matrix(source, 24, 65, outliers=4), [source.randrange(24) for _ in range(40)]
        return Sample({"a": table, "b": order}, exactly(rows_picked(table, order)))

    node = Node("Gather", ["a", "b"], ["y"])
    return Operation("Gather", "float32", [node], inputs, [Value("y", "float32", [40, 65])], new_sample, required=False)


def _wide_mean(dtype: str, share: float) -> Operation:
    """Return means of positive numbers: a sum in half precision would overflow."""

    def new_sample() -> Sample:
        table = layers.eighths(fresh(), 3, layers.WIDE, 128, 256)
        return Sample({"x": table}, exactly(layers.means(table, share)))

    node = Node("ReduceMean", ["x"], ["y"], {"axes": [1]})
    return _unary(f"ReduceMean of {layers.WIDE}", dtype, node, [3, layers.WIDE], [3, 1], new_sample)


def _wide_softmax(dtype: str, share: float) -> Operation:
    """Return softmax over many entries, with masked ones: a sum in half precision would stop at 2,048."""

    def new_sample() -> Sample:
        source = fresh()
        table = layers.eighths(source, 2, layers.WIDE, -2, 0)
        table += [[72 * value for value in row] for row in layers.eighths(source, 1, layers.WIDE, -10, 10)]
        for row in table:
            visible = source.randrange(3072, layers.WIDE)
            row[visible:] = [_MASKED] * (layers.WIDE - visible)
        return Sample({"x": table}, exactly(layers.wide_softmax(table, 2 * share)))

    shape = [3, layers.WIDE]
    return _unary(f"Softmax of {layers.WIDE}", dtype, Node("Softmax", ["x"], ["y"]), shape, shape, new_sample)


def _rms_norm(dtype: str, share: float, outlier: int) -> Operation:
    """Return the norm of most text models, with squares beyond the range of float16."""
    scale = layers.eighths(fresh(), 1, layers.WIDE, 4, 12)[0]

    def new_sample() -> Sample:
        table = layers.eighths(fresh(), 3, layers.WIDE, -16, 16, 8, outlier)
        return Sample({"x": table}, exactly(layers.rms_norm(table, scale, share)))

    node = Node("SimplifiedLayerNormalization", ["x", "scale"], ["y"], {"axis": -1, "epsilon": layers.EPSILON})
    shape = [3, layers.WIDE]
    weights = [weight("scale", dtype, [layers.WIDE], scale)]
    return _unary(f"RMSNorm of {layers.WIDE}", dtype, node, shape, shape, new_sample, weights)


def _layer_norm(dtype: str, share: float) -> Operation:
    source, width = fresh(), 1024
    scale, shift = layers.eighths(source, 1, width, 4, 12)[0], layers.eighths(source, 1, width, -8, 8)[0]

    def new_sample() -> Sample:
        table = layers.eighths(fresh(), 6, width, -8, 24, 2, _MODEST_OUTLIER)
        return Sample({"x": table}, exactly(layers.layer_norm(table, scale, shift, share)))

    node = Node("LayerNormalization", ["x", "scale", "shift"], ["y"], {"axis": -1, "epsilon": layers.EPSILON})
    weights = [weight("scale", dtype, [width], scale), weight("shift", dtype, [width], shift)]
    return _unary(f"LayerNorm of {width}", dtype, node, [6, width], [6, width], new_sample, weights)


def _unary(
    name: str, dtype: str, node: Node, shape: list[int], result: list[int], new_sample: Any, weights: Any = ()
) -> Operation:
    value, output = Value("x", dtype, shape), Value("y", dtype, result)
    return Operation(name, dtype, [node], [value], [output], new_sample, weights, required=False)


def _prompt_attention(dtype: str, share: float) -> Operation:
    """Return attention over a prompt: each token sees those before it and itself."""
    return _attention("of a prompt", dtype, share, batch=1, tokens=_PROMPT, past=0)


def _step_attention(dtype: str, share: float) -> Operation:
    """Return attention of one more token of two sequences of different lengths, with cached keys and values."""
    return _attention("of a step", dtype, share, batch=2, tokens=1, past=_PAST)


def _attention(what: str, dtype: str, share: float, batch: int, tokens: int, past: int) -> Operation:
    """Return the operator GroupQueryAttention, as models of ONNX Runtime GenAI have it."""
    cache, fresh_keys = [batch, _GROUPS, past, _WIDTH], [batch, tokens, _GROUPS * _WIDTH]
    grown = [batch, _GROUPS, past + tokens, _WIDTH]
    inputs = [
        Value("query", dtype, [batch, tokens, _HEADS * _WIDTH]),
        *(Value(name, dtype, fresh_keys) for name in ("key", "value")),
        *(Value(name, dtype, cache) for name in ("past_key", "past_value")),
        Value("last", "int32", [batch]),
        Value("total", "int32", [1]),
    ]
    outputs = [Value("y", dtype, [batch, tokens, _HEADS * _WIDTH])]
    outputs += [Value(name, dtype, grown) for name in ("present_key", "present_value")]
    node = Node(
        "GroupQueryAttention",
        [value.name for value in inputs],
        [value.name for value in outputs],
        {"num_heads": _HEADS, "kv_num_heads": _GROUPS},
        _CONTRIB,
    )
    return Operation(
        f"Attention {what}",
        dtype,
        [node],
        inputs,
        outputs,
        lambda: _attention_sample(batch, tokens, past, 12 * share),
        required=False,
    )


def _attention_sample(batch: int, tokens: int, past: int, allowed: float) -> Sample:
    source = fresh()
    lengths = [past - 9 * number for number in range(batch)]  # the rest of the cache is masked

    def tensor(heads: int, positions: int) -> list[list[Matrix]]:
        return [[layers.eighths(source, positions, _WIDTH, -16, 16) for _ in range(heads)] for _ in range(batch)]

    query, key, value = tensor(_HEADS, tokens), tensor(_GROUPS, tokens), tensor(_GROUPS, tokens)
    past_key, past_value = tensor(_GROUPS, past), tensor(_GROUPS, past)
    references = [
        layers.attention(
            query[row],
            [old[:length] + new for old, new in zip(past_key[row], key[row], strict=True)],
            [old[:length] + new for old, new in zip(past_value[row], value[row], strict=True)],
            [length + position + 1 for position in range(tokens)],
            allowed,
        )
        for row, length in enumerate(lengths)
    ]
    inputs: dict[str, Any] = {
        "query": [_by_token(heads) for heads in query],
        "key": [_by_token(heads) for heads in key],
        "value": [_by_token(heads) for heads in value],
        "past_key": past_key,
        "past_value": past_value,
        "last": [length + tokens - 1 for length in lengths],
        "total": [past + tokens],
    }
    values = list(chain.from_iterable(reference.values for reference in references))
    return Sample(inputs, exactly(Reference(values, [allowed] * len(values))))


def _by_token(heads: list[Matrix]) -> list[list[float]]:
    """Return for each token the vectors of all heads, one after the other."""
    return [[entry for vector in vectors for entry in vector] for vectors in zip(*heads, strict=True)]
