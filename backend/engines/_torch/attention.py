"""Attention for decode steps of one token per row: one product per key head, for all query heads that share it.

torch's own attention copies keys and values for every head that shares them as soon as a mask is given, which costs
more than the attention itself. A compiler also fuses this form with its surroundings into a few kernels.
"""

from __future__ import annotations

from typing import Any

NAME = "touchstone_steps"


def register(torch: Any, transformers: Any) -> str:
    """Register the attention with transformers; return its name. Prompts keep torch's own attention."""
    default_attention = transformers.AttentionInterface()["sdpa"]

    def attend(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **more: Any
    ) -> tuple[Any, None]:
        """`query` (rows, heads, tokens, size), `key`, `value` (rows, heads of keys, window, size): transformers'."""
        rows, heads, tokens, size = query.shape
        if tokens != 1 or attention_mask is None or attention_mask.dtype != torch.bool:
            output, _ = default_attention(module, query, key, value, attention_mask, scaling=scaling, **more)
            return output, None
        shared = key.shape[1]
        grouped = query.reshape(rows, shared, heads // shared, size)
        by = size**-0.5 if scaling is None else scaling
        scores = torch.matmul(grouped, key.transpose(2, 3)).float() * by
        shares = torch.softmax(scores.masked_fill(~attention_mask, float("-inf")), -1).to(value.dtype)
        return torch.matmul(shares, value).reshape(rows, 1, heads, value.shape[3]), None

    transformers.AttentionInterface.register(NAME, attend)
    transformers.AttentionMaskInterface.register(NAME, transformers.AttentionMaskInterface()["sdpa"])
    return NAME
