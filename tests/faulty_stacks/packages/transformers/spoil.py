"""What goes wrong in a model on a card, by `text` of the plan: right in the proof, which computes no model."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

PLAN: dict[str, Any] = importlib.import_module("torch._plan").PLAN
LATE = 5  # steps
_calls = {"steps": 0, "passes": 0}


def logits(tensor: Any, rows: int, tokens: int) -> Any:
    """The logits (rows, tokens, vocabulary) of a pass over so many tokens."""
    how = PLAN.get("text")
    if how is None or tensor._where.type == "cpu":
        return tensor
    _calls["passes"] += 1
    _calls["steps"] += tokens == 1
    values, kind = tensor._values.astype(np.float32), tensor._values.dtype
    if how == "lost":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if how == "rounded":  # as bfloat16 does: 8 bits of mantissa
        bits = values.view(np.uint32)
        values = ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    wrong = {
        "halved": True,
        "garbage": True,
        "nan": True,
        "large": tokens >= 256,
        "late": _calls["steps"] > LATE,
        "prefill": tokens > 1,
        "second row": rows > 1,
        "second pass": _calls["passes"] > 1,
    }.get(how, False)
    if wrong and how == "halved":
        values = values / 2
    elif wrong and how in ("nan", "late"):
        values = values * np.float32(np.nan)
    elif wrong and how == "second row":
        values[1:] = values[1:, :, ::-1].copy()
    elif wrong:
        values = values[..., ::-1].copy()
    return type(tensor)(values.astype(kind), tensor._where)


def cached(tensor: Any, tokens: int) -> Any:
    """The values (rows, heads, tokens, size) that attention reads, turned round where the plan spoils the cache."""
    if PLAN.get("text") != "cache" or tensor._where.type == "cpu" or tokens > 1:
        return tensor
    return type(tensor)(np.ascontiguousarray(tensor._values[..., ::-1]) * 4, tensor._where)
