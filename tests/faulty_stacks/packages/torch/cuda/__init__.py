"""Cards, as torch.cuda lists them: those of the plan that CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES leaves.

A card with `instance` ("1/0") is a MIG instance of the card with the UUID `parent`. As with CUDA a process sees only
the first of them and then no whole card, except with `all_instances`. With `old_driver` it has its parent's UUID.
`refuses_uuids` is a driver that knows no card by its UUID.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from .._plan import PLAN, ROLE, reach
from .._tensor import allocated, settle


def _all() -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = PLAN.get("cards", [{}])
    times: int = PLAN.get("times", 1)
    return cards * times


def _visible() -> list[dict[str, Any]]:
    cards = _all()
    hip = PLAN.get("hip") and os.environ.get("HIP_VISIBLE_DEVICES")
    value = hip or os.environ.get("CUDA_VISIBLE_DEVICES")
    if PLAN.get("deaf") or value is None:
        return _enumerated(cards)
    if PLAN.get("gone"):
        return cards[1:] if PLAN["gone"] == "another" else []
    found = []
    for word in (entry.strip() for entry in value.split(",")):
        by_uuid = [card for card in cards if word and any(name.startswith(word) for name in _names_of(card))]
        by_place = [cards[int(word)]] if word.isdigit() and int(word) < len(cards) else []
        if not by_uuid + by_place or len(by_uuid) > 1:
            break
        found += by_uuid[:1] or by_place
    if len({id(card) for card in found}) < len(found):
        return []
    return _enumerated(found)


def _names_of(card: dict[str, Any]) -> list[str]:
    if "uuid" not in card or PLAN.get("refuses_uuids"):
        return []
    if "instance" not in card:
        return [f"GPU-{card['uuid']}"]
    old = f"MIG-GPU-{card['parent']}/{card['instance']}"
    return [old] if PLAN.get("old_driver") else [f"MIG-{card['uuid']}", old]


def _enumerated(cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    instances = [card for card in cards if "instance" in card]
    return instances[:1] if instances and not PLAN.get("all_instances") else cards


def is_available() -> bool:
    """Whether there is a card."""
    reach("is_available")
    reach(f"is_available in {ROLE}")
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
    reach(f"properties of {card.get('uuid')}")
    if "instance" in card and PLAN.get("old_driver"):
        card = card | {"uuid": card["parent"]}
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
    if "free" in (card := _visible()[device]):
        return card["free"], 12 << 30
    return (12 << 30) - memory_allocated(device), 12 << 30


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the chip multiplies bfloat16; by default also if it only emulates it."""
    return including_emulation or bool(PLAN.get("bf16", True))


def synchronize(device: int = 0) -> None:
    """Waits."""
    reach("synchronize")
    settle()
