"""Cards without description, equal ones, full memory, and AMD's cards in a build that does not say so."""

from __future__ import annotations

from typing import Any

from tests.faulty_stacks.cases.case import CARD, PCI, TWIN, TWIN_PCI
from tests.faulty_stacks.probed import Expected, stack
from tests.faulty_stacks.stack import Category, Stack

AMD = {"name": "AMD Radeon RX 7900 XTX", "gcnArchName": "gfx1100:sramecc+:xnack-", "major": 11, "minor": 0}
SICK = Expected(
    "broken",
    reason="while describing cuda:.: RuntimeError: CUDA error: unknown error[.]$",
    remedy="the other cards work",
)


ERROR = ["raise", ["RuntimeError", "CUDA error: unknown error\nCompile with TORCH_USE_CUDA_DSA"]]
DEAD = Expected("broken", reason="while describing cuda:1: it was killed by SIGSEGV", remedy="the other cards work")


def sick(name: str, card: dict[str, Any], expected: list[Expected], fault: list[Any] = ERROR) -> Stack:
    error = [fault]
    plan = {"cards": [CARD, TWIN], "at": {f"properties of {card['uuid']}": error}}
    return stack(f"sick card-{name}", "other", plan, {f"cuda:{place}": each for place, each in enumerate(expected)})


def rocm(name: str, category: Category = "other", **plan: Any) -> Stack:
    """A torch for ROCm whose `version.hip` is None."""
    expected = {"rocm:0": Expected("ready", AMD["name"], "gpu")}  # type: ignore[arg-type]
    return stack(f"ROCm-{name}", category, {"cards": [AMD], **plan}, expected)


STACKS = [
    stack(
        "two cards-equal, distinguished by address",
        "control",
        {"cards": [CARD, TWIN]},
        {"cuda:0": Expected("ready", hardware_id=PCI), "cuda:1": Expected("ready", hardware_id=TWIN_PCI)},
    ),
    stack(
        "two cards-one UUID",
        "other",
        {"cards": [CARD, TWIN | {"uuid": CARD["uuid"]}]},
        {"cuda:0": Expected("ready", hardware_id=PCI), "cuda:1": Expected("ready", hardware_id=TWIN_PCI)},
    ),
    stack(
        "two cards-Intel's",
        "control",
        {"cards": [], "cuda": None, "xpu": "20250302", "xpu_cards": [{"name": "Arc A770"}, {"name": "Arc A380"}]},
        {"xpu:0": Expected("ready", "Arc A770"), "xpu:1": Expected("ready", "Arc A380")},
    ),
    stack(
        "two cards-one is part of the processor",
        "control",
        {"cards": [CARD | {"name": "NVIDIA GB10", "is_integrated": True}, TWIN]},
        {"cuda:0": Expected("ready", "NVIDIA GB10", "integrated"), "cuda:1": Expected("ready", kind="gpu")},
    ),
    sick("the second", TWIN, [Expected("ready", hardware_id=PCI), SICK]),
    sick("one that ends the process", TWIN, [Expected("ready", hardware_id=PCI), DEAD], ["signal", "SIGSEGV"]),
    sick("the first", CARD, [SICK, Expected("ready", hardware_id=TWIN_PCI)]),
    stack(
        "memory-full",
        "other",
        {"cards": [CARD | {"free": 0}]},
        {"cuda:0": Expected("ready", free_bytes=0, note="Its memory is full: 0 MB of .* GB free")},
    ),
    rocm("built for it", "control", hip="7.2.1", cuda=None),
    rocm("by the version", cuda=None, version="2.9.1+rocm7.1"),
    rocm("by the chip", cuda=None, version="2.9.1"),
    rocm("by the chip, in a build that names CUDA", version="2.9.1"),
    rocm("by the name", cuda=None, version="2.9.1", cards=[{"name": AMD["name"]}]),
]
