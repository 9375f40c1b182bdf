"""Which runtime is worth installing first for the hardware found, in a sentence."""

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
    """The name of the runtime, and why; None where nothing is missing.

    For each card the backends' own order counts, except that a recipe leads for the makers in its `first_for`.
    """
    states = {runtime.name: runtime.state for runtime in runtimes}
    cards = sorted(
        (item for item in hardware if item.kind in _KINDS), key=lambda item: (_KINDS.index(item.kind), item.id)
    )
    offers = [(recipe, {item.id: name for name, item in meant_for(recipe.name, cards)}) for recipe in recipes]
    for card in cards:
        fitting = [(_rank(recipe, found[card.id], card), recipe) for recipe, found in offers if card.id in found]
        usable = sorted(
            (pair for pair in fitting if states.get(pair[1].name) in ("installable", "installed")),
            key=lambda pair: pair[0],
        )
        if usable and states[usable[0][1].name] == "installable":
            chosen = usable[0][1]
            build = chosen.build()
            assert build
            return chosen.name, f"{card.name} is here; {chosen.title} would use it ({costs(build)})."
    return None, "Nothing that is here lacks a runtime."


def _rank(recipe: Recipe, backend: str, card: Hardware) -> tuple[bool, int]:
    return card.vendor not in recipe.first_for, backends()[backend].rank
