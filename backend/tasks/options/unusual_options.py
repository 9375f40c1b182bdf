"""Which options of a text request are unusual: the death of a worker with them does not count against its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.tasks.options.text import LOGPROBS_LIMIT, PROMPT_OPTIONS, TextOptions

# Where most requests are. Of an option that is not listed, only the default is usual.
_USUAL: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1.5),
    "top_p": (0.05, 1.0),
    "top_k": (0, 1000),
    "repetition_penalty": (0.8, 1.5),
    "presence_penalty": (-1.0, 1.0),
    "frequency_penalty": (-1.0, 1.0),
    "max_tokens": (1, 1_000_000),
    "logprobs": (0, LOGPROBS_LIMIT),
}


def unusual_options(options: Mapping[str, Any]) -> list[str]:
    """Return the sampling options with values that few requests have. Seed, stop and the prompt's are always usual."""
    fields = TextOptions.model_fields
    unusual = []
    for name, value in options.items():
        if name not in fields or name in ("seed", "stop", *PROMPT_OPTIONS) or value == fields[name].default:
            continue
        low, high = _USUAL.get(name, (1, 0))
        if not isinstance(value, int | float) or not low <= value <= high:
            unusual.append(name)
    return unusual
