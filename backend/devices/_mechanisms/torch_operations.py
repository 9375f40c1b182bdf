"""The operations of models, as a torch proof checks them in each data type: inputs, the call and the reference.

Inputs are as real activations are: wide ranges, outliers, masks, sums of 4,096 entries. They are rounded to the data
type before the reference is computed, so that the tolerance covers only the computation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from backend.common.device_api import TorchAccess
from backend.devices._mechanisms.reference_layers import (
    EPSILON,
    WIDE,
    attention,
    eighths,
    layer_norm,
    means,
    rms_norm,
    wide_softmax,
)
from backend.devices._mechanisms.reference_math import (
    COARSE,
    PRECISE,
    ROUNDOFF,
    TO_255,
    Matrix,
    Reference,
    convolution,
    elementwise,
    fresh,
    product,
    real_matrix,
    rounded,
    row_sums,
    rows_picked,
    softmax,
    table_matrix,
    ternary_matrix,
    whole_matrix,
)

_HEADS, _HEAD_SIZE = 2, 64
_FAST_MATH = 1e-4  # share of the result that fast versions of exp and 1/√x may be off in float32


@dataclass(frozen=True)
class Operation:
    """One operation. `compute` returns a tensor on the device, `reference` is its right result.

    `function` is what it calls; None if this torch lacks it. `required`: whether models of engines need it.
    """

    name: str
    function: Any
    compute: Callable[[], Any]
    reference: Reference
    required: bool = True


def to_device(access: TorchAccess, values: Any, dtype: str) -> Any:
    """Return nested lists as a tensor on the device."""
    return access.torch.tensor(values, dtype=getattr(access.torch, dtype)).to(access.device)


def multiply(access: TorchAccess, left: Any, right: Any) -> Any:
    """Return the matrix product."""
    return access.torch.matmul(left, right) if hasattr(access.torch, "matmul") else left @ right


def functional(access: TorchAccess) -> Any:
    """Return `torch.nn.functional`, None if this torch lacks it."""
    return find(find(access.torch, "nn"), "functional")


def find(module: Any, name: str) -> Any:
    """Return a function of a module, None if this version lacks it."""
    return getattr(module, name, None)


def operations(access: TorchAccess, dtype: str) -> list[Operation]:
    """Return the operations of a data type, those first that every version of torch has."""
    source = fresh()
    build = _Builder(access, dtype, source)
    plain = [build.convolution(), build.sums(), build.softmax(), build.gather()]
    if access.plain_only:  # its engines compute the rest on the processor, or in parts
        return plain
    return [
        *plain,
        build.long_sums(),
        build.means(),
        build.activation(),
        *build.norms(),
        *build.attentions(),
        build.heads(),
    ]


class _Builder:
    """Makes the operations of one data type, each with random inputs."""

    def __init__(self, access: TorchAccess, dtype: str, source: random.Random) -> None:
        self._access, self._dtype, self._source = access, dtype, source
        self._torch = access.torch
        self._functional = functional(access)
        self._is_half = dtype != "float32"
        self._roundoff = ROUNDOFF[dtype]
        self._put = partial(to_device, access, dtype=dtype)

    def convolution(self) -> Operation:
        """Integers. Fast algorithms and cards that round inputs to 11 bits are within the tolerance."""
        largest = 1 if self._is_half else 4
        image = [whole_matrix(self._source, 10, 10, largest, outliers=1) for _ in range(3)]
        filters = [[whole_matrix(self._source, 3, 3, largest) for _ in range(3)] for _ in range(4)]
        share = max(COARSE, 8 * self._roundoff)
        conv2d = find(self._functional, "conv2d")
        reference = convolution(image, filters, share)
        return Operation(
            "Conv2d", conv2d, lambda: conv2d(self._put([image]), self._put(filters)), reference, required=False
        )

    def sums(self) -> Operation:
        """Real numbers with outliers; not a multiple of a vector's width."""
        table = rounded(real_matrix(self._source, 24, 65, outliers=4), self._dtype)
        reference = row_sums(table, max(PRECISE, 4 * self._roundoff))
        return self._row_function("Sum", "sum", table, reference)

    def long_sums(self) -> Operation:
        """Integers whose sums stay exact in each data type. Those in float32 exceed the range of float16."""
        values = (-1.0, 1.0, *[0.0] * 6) if self._is_half else TO_255
        table = table_matrix(self._source, 2, WIDE, values)
        return self._row_function(f"Sum of {WIDE}", "sum", table, row_sums(table, 0.0))

    def means(self) -> Operation:
        """Positive numbers: a sum that is kept in the data type stops growing."""
        table = eighths(self._source, 2, WIDE, 0, 96)
        return self._row_function(f"Mean of {WIDE}", "mean", table, means(table, max(PRECISE, 4 * self._roundoff)))

    def softmax(self) -> Operation:
        """Scores so high that the largest of each row must be subtracted first."""
        steep = [[value * 9 for value in row] for row in whole_matrix(self._source, 16, 33, 10)]
        reference = wide_softmax(steep, 16 * self._roundoff) if self._is_half else softmax(steep)
        return self._row_function("Softmax", "softmax", steep, reference)

    def gather(self) -> Operation:
        """Rows, as an embedding picks them."""
        table = rounded(real_matrix(self._source, 24, 65, outliers=4), self._dtype)
        order = [self._source.randrange(24) for _ in range(40)]
        select = find(self._torch, "index_select")
        whole = partial(to_device, self._access, dtype="int64")
        reference = rows_picked(table, order)
        return Operation("Gather", select, lambda: select(self._put(table), 0, whole(order)), reference)

    def activation(self) -> Operation:
        """SiLU, of most models."""
        table = rounded(real_matrix(self._source, 8, 65, 4, 30.0), self._dtype)
        silu = find(self._functional, "silu")
        reference = elementwise(table, lambda x: x / (1 + math.exp(-x)), max(_FAST_MATH, 4 * self._roundoff))
        return Operation("Silu", silu, lambda: silu(self._put(table)), reference)

    def norms(self) -> list[Operation]:
        """Return layer norm and RMS norm, with outliers as activations have."""
        width = 192
        table = eighths(self._source, 6, width, -40, 40, outliers=2)
        weight, bias = eighths(self._source, 2, width, 4, 16)
        share = max(_FAST_MATH, 8 * self._roundoff)
        layer, rms = find(self._functional, "layer_norm"), find(self._functional, "rms_norm")
        put = self._put
        layered = layer_norm(table, weight, bias, share)
        scaled = rms_norm(table, weight, share)
        return [
            Operation(
                "LayerNorm", layer, lambda: layer(put(table), (width,), put(weight), put(bias), EPSILON), layered
            ),
            Operation("RMSNorm", rms, lambda: rms(put(table), (width,), put(weight), EPSILON), scaled, required=False),
            Operation(
                "RMSNorm in parts",
                find(self._torch, "rsqrt"),
                lambda: self._norm_in_parts(put(table), put(weight)),
                scaled,
                required=False,
            ),
        ]

    def attentions(self) -> list[Operation]:
        """Return attention of a prompt, with the causal flag, and of a chunk after a cache, with a mask."""
        attend = find(self._functional, "scaled_dot_product_attention")
        allowed = max(COARSE, 8 * self._roundoff)
        found = []
        for name, tokens, window in (("Attention, causal", 20, 20), ("Attention with mask", 5, 130)):
            queries = self._heads_of(tokens, 3.0)
            keys, values = self._heads_of(window, 1.0), self._heads_of(window, 1.0)
            visible = [row + 1 + window - tokens for row in range(tokens)]
            by_head = [
                attention([head], [head_keys], [head_values], visible, allowed)
                for head, head_keys, head_values in zip(queries, keys, values, strict=True)
            ]
            expected = [value for reference in by_head for value in reference.values]
            mask = None if tokens == window else [[column < count for column in range(window)] for count in visible]
            compute = partial(self._attend, attend, (queries, keys, values), mask)
            found.append(Operation(name, attend, compute, Reference(expected, [allowed] * len(expected))))
        return found

    def heads(self) -> Operation:
        """Products of several heads at once, as attention over shared keys computes them."""
        pairs = [(ternary_matrix(self._source, 3, 64), ternary_matrix(self._source, 64, 24)) for _ in range(4)]
        expected = [product(left, right, 0.0) for left, right in pairs]
        values = [value for reference in expected for value in reference.values]
        left, right = ([[pair[side] for pair in pairs[:2]], [pair[side] for pair in pairs[2:]]] for side in (0, 1))
        reference = Reference(values, [0.0] * len(values))
        return Operation(
            "MatMul of heads",
            find(self._torch, "matmul"),
            lambda: multiply(self._access, self._put(left), self._put(right)),
            reference,
        )

    def _attend(self, attend: Any, inputs: tuple[list[Matrix], ...], mask: list[list[bool]] | None) -> Any:
        """Compute attention as transformers does: with a mask of true and false, or as a causal prompt."""
        how = {"is_causal": True} if mask is None else {"attn_mask": to_device(self._access, mask, "bool")}
        return attend(*(self._put([heads]) for heads in inputs), **how)

    def _row_function(self, name: str, attribute: str, table: Matrix, reference: Reference) -> Operation:
        function = find(self._torch, attribute)
        return Operation(name, function, lambda: function(self._put(table), 1), reference)

    def _heads_of(self, rows: int, largest: float) -> list[Matrix]:
        heads = [
            [[largest * (2 * self._source.random() - 1) for _ in range(_HEAD_SIZE)] for _ in range(rows)]
            for _ in range(_HEADS)
        ]
        return [rounded(head, self._dtype) for head in heads]

    def _norm_in_parts(self, states: Any, weight: Any) -> Any:
        """Compute RMS norm as the models of transformers do: in float32, then in the data type."""
        torch = self._torch
        wide = states.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return weight * (wide * torch.rsqrt(variance + EPSILON)).to(getattr(torch, self._dtype))


def read(tensor: Any) -> Any:
    """Return the numbers of a tensor as nested lists. Those of 16 bits become float32 on the host, which is exact."""
    host = tensor.cpu()
    widen = find(host, "float")
    return (host if widen is None else widen()).tolist()
