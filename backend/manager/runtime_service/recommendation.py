"""Recommends the runtime to install first for the hardware of this machine."""

from __future__ import annotations

from collections.abc import Iterable

from backend.common.types import Hardware
from backend.devices import backends
from backend.manager.runtime_service.verification import meant_for
from backend.runtimes.recipes import Recipe, costs
from backend.runtimes.types import Runtime

_KINDS = ("gpu", "integrated", "npu")  # the order in which hardware is served


def best(
    recipes: Iterable[Recipe], runtimes: Iterable[Runtime], hardware: Iterable[Hardware]
) -> tuple[str | None, str]:
    """Return the name of the runtime and the reason as a sentence. The name is None if no runtime is missing.

    For each card the order of the backends decides, except that a recipe leads for the vendors in its `first_for`.
    """
    states = {runtime.name: runtime.state for runtime in runtimes}
    cards = sorted(
        (item for item in hardware if item.kind in _KINDS), key=lambda item: (_KINDS.index(item.kind), item.id)
    )
    offers = [(recipe, {item.id: name for name, item in meant_for(recipe.name, cards)}) for recipe in recipes]
    for card in cards:
        ranked = [(_rank(recipe, by_card[card.id], card), recipe) for recipe, by_card in offers if card.id in by_card]
        usable = sorted(
            (pair for pair in ranked if states.get(pair[1].name) in ("installable", "installed")),
            key=lambda pair: pair[0],
        )
        if usable and states[usable[0][1].name] == "installable":
            recipe = usable[0][1]
            build = recipe.build()
            assert build
            return recipe.name, f"{card.name} is here; {recipe.title} would use it ({costs(build)})."
    return None, "No hardware of this machine lacks a runtime."


def _rank(recipe: Recipe, backend: str, card: Hardware) -> tuple[bool, int, int]:
    offered = [offer.runtime for offer in backends()[backend].offers]
    place = offered.index(recipe.name) if recipe.name in offered else len(offered)
    return card.vendor not in recipe.first_for, backends()[backend].rank, place
