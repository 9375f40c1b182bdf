"""Rewrites a graph so that its attention reads a cache of blocks."""

from __future__ import annotations

from openvino import PLAN, Model

INPUTS = ("input_ids", "position_ids", "max_context_len", "past_lens", "subsequence_begins", "block_indices_begins")
CACHE = ("block_indices", "key_cache.0", "value_cache.0")


def paged_attention_transformation(model: Model) -> None:
    """Puts in the inputs, or finds a state that it does not know."""
    if PLAN.get("own_state"):
        raise RuntimeError("The model is not stateful in a known way")
    model.names = [*INPUTS, *CACHE]
