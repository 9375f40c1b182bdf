"""Layers of models."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._plan import PLAN
from .._tensor import Tensor, product, result


def conv2d(input: Tensor, weight: Tensor) -> Tensor:
    """Cross-correlation, stride 1, without padding."""
    image, filters = input._values.astype(np.float32), weight._values.astype(np.float32)
    side = filters.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(image, (side, side), axis=(2, 3))
    return result("conv2d", np.einsum("nchwyx,ocyx->nohw", windows, filters), input)


def linear(input: Tensor, weight: Tensor) -> Tensor:
    """The product with a transposed matrix."""
    turned = Tensor(np.ascontiguousarray(weight._values.T), weight._where, weight._kind)
    return result("linear", product(input, turned), input, weight._values.shape[-1])


def silu(input: Tensor) -> Tensor:
    """Each entry times its sigmoid."""
    values = input._values.astype(np.float32)
    return result("silu", values / (1 + np.exp(-values)), input)


def layer_norm(input: Tensor, normalized_shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Each row without its mean, by its standard deviation."""
    values = input._values.astype(np.float32)
    values = values - values.mean(axis=-1, keepdims=True)
    return result("layer_norm", _scaled(values, eps) * weight._values + bias._values, input)


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor, eps: float) -> Tensor:
    """Each row by its root mean square."""
    return result("rms_norm", _scaled(input._values.astype(np.float32), eps) * weight._values, input)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Attention of several heads."""
    keys = np.swapaxes(key._values.astype(np.float32), 2, 3)
    scores = query._values.astype(np.float32) @ keys * query._values.shape[-1] ** -0.5
    how = PLAN.get("spoil", {}).get("mask", (None, None, None))
    if not (how[0] and query._where.type != "cpu" and how[2] in (None, query._kind)):  # a mask that is ignored
        if is_causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        elif attn_mask is not None:
            scores = np.where(attn_mask._values, scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = powers / powers.sum(axis=-1, keepdims=True) @ value._values.astype(np.float32)
    return result("scaled_dot_product_attention", mixed, query)


def _scaled(values: Any, eps: float) -> Any:
    return values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + eps)
