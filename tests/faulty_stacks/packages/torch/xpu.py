"""Intel's cards, as torch.xpu lists them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from ._plan import PLAN, reach
from ._tensor import allocated


def _visible() -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = PLAN.get("xpu_cards", [])
    value = os.environ.get("ZE_AFFINITY_MASK")
    if value is None:
        return cards
    return [cards[int(word)] for word in value.split(",") if word.isdigit() and int(word) < len(cards)]


def is_available() -> bool:
    """Whether there is a card."""
    reach("xpu.is_available")
    return bool(_visible())


def device_count() -> int:
    """How many there are."""
    return len(_visible())


def get_device_properties(device: int) -> Any:
    """Name, memory, identity."""
    facts = {"name": "Intel(R) Arc(TM) A770 Graphics", "total_memory": 16 << 30}
    return SimpleNamespace(**(facts | _visible()[device]))


def get_device_name(device: int) -> str:
    """The name alone."""
    return str(get_device_properties(device).name)


def memory_allocated(device: int = 0) -> int:
    """Bytes that live tensors have taken."""
    return allocated.get(f"xpu:{device}", 0)


def synchronize(device: int = 0) -> None:
    """Waits."""
    reach("synchronize")
