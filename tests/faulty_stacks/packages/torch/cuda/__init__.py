"""Cards, as torch.cuda lists them: those of the plan that CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from .._plan import PLAN, reach
from .._tensor import allocated


def _all() -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = PLAN.get("cards", [{}])
    times: int = PLAN.get("times", 1)
    return cards * times


def _visible() -> list[dict[str, Any]]:
    cards = _all()
    hip = PLAN.get("hip") and os.environ.get("HIP_VISIBLE_DEVICES")
    value = hip or os.environ.get("CUDA_VISIBLE_DEVICES")
    if PLAN.get("deaf") or value is None:
        return cards
    if PLAN.get("gone"):
        return cards[1:] if PLAN["gone"] == "another" else []
    found = []
    for word in value.split(","):
        by_uuid = [card for card in cards if "uuid" in card and word and f"GPU-{card['uuid']}".startswith(word)]
        by_place = [cards[int(word)]] if word.isdigit() and int(word) < len(cards) else []
        if not by_uuid + by_place:
            break
        found += by_uuid[:1] or by_place
    return found


def is_available() -> bool:
    """Whether there is a card."""
    reach("is_available")
    return bool(PLAN.get("available", bool(_visible())))


def device_count() -> int:
    """How many there are."""
    reach("device_count")
    count: int = PLAN.get("count", len(_visible()))
    return count


def init() -> None:
    """Starts the driver."""
    reach("init")


def get_device_properties(device: int) -> Any:
    """Name, memory, identity."""
    reach("properties")
    card = _visible()[device]
    facts = {
        "name": "NVIDIA GeForce RTX 3060",
        "total_memory": 12 << 30,
        "major": 8,
        "minor": 6,
        "is_integrated": False,
    }
    if PLAN.get("hip"):
        facts |= {"name": "AMD Radeon RX 7900 XTX", "gcnArchName": "gfx1100:sramecc+:xnack-", "major": 11, "minor": 0}
    return SimpleNamespace(**(facts | card))


def get_device_name(device: int) -> str:
    """The name alone."""
    return str(get_device_properties(device).name)


def memory_allocated(device: int = 0) -> int:
    """Bytes that live tensors have taken."""
    return allocated.get(f"cuda:{device}", 0)


def mem_get_info(device: int = 0) -> tuple[int, int]:
    """Free and total bytes."""
    reach("mem_get_info")
    return (12 << 30) - memory_allocated(device), 12 << 30


def synchronize(device: int = 0) -> None:
    """Waits."""
    reach("synchronize")
