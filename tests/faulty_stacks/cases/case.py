"""One case of the matrix, and plans of faults."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.faulty_stacks.stack import Category

CARD = {"uuid": "3f2b1c4d-0a5e-4f6b-8c7d-9e0f1a2b3c4d", "pci_domain_id": 0, "pci_bus_id": 1, "pci_device_id": 0}
TWIN = CARD | {"uuid": "3f2b1c4d-0a5e-4f6b-8c7d-9e0f1a2b3c4e", "pci_bus_id": 2}
PCI, TWIN_PCI = "pci:0000:01:00.0", "pci:0000:02:00.0"
SECRET = "hf_" + "Qw3rTy9uIoPaSdFgHjKl"  # noqa: S105 (nobody's)
TORCH, DIRECTML = ("torch",), ("torch", "torch_directml")

_CATEGORIES: dict[str, Category] = {
    "wrong numbers": "numbers",
    "CPU passed off": "numbers",
    "DirectML": "windows",
    "import error": "interpreter",
    "missing library": "interpreter",
    "version mismatch": "interpreter",
}


@dataclass(frozen=True)
class Case:
    """A stack and the expected device: state, stage, layer, and patterns of reason and remedy."""

    mechanism: str
    variant: str
    plan: dict[str, Any]
    state: str = "broken"
    stage: str = "visible"
    layer: str | None = "computation"
    reason: str = ""  # a regular expression, as the others
    remedy: str = ""
    device: str = "cuda:0"
    packages: tuple[str, ...] = TORCH
    also: dict[str, Any] = field(default_factory=dict)  # further fields of the device
    stated_category: Category | None = None  # optional, where the mechanism does not decide it

    @property
    def name(self) -> str:
        """The id of the test and the name of its folder."""
        return re.sub(r"[^\w.-]+", "_", f"{self.mechanism}-{self.variant}")

    @property
    def category(self) -> Category:
        """The category in the matrix. Default: that of the mechanism."""
        return self.stated_category or _CATEGORIES.get(self.mechanism, "other")

    @property
    def shares(self) -> bool:
        """Whether the stack lists one card correctly, so that it can share a machine with other stacks."""
        return self.plan.get("cards") == [CARD] and self.stage in ("visible", "measured") and self.device == "cuda:0"

    @property
    def several(self) -> bool:
        """Whether the stack also has working devices."""
        return len(self.plan.get("cards", [])) > 1 or self.plan.get("count") == 2


def card(number: int) -> dict[str, Any]:
    """One of several cards of a machine."""
    return CARD | {"uuid": f"3f2b1c4d-0a5e-4f6b-8c7d-{number:012x}", "pci_bus_id": 16 + number}


def at(point: str, action: str, argument: Any, **more: Any) -> dict[str, Any]:
    """Return a plan with one card and an event at one point."""
    return {"cards": [CARD], "at": {point: [[action, argument]]}, **more}


def spoil(op: str, how: str, argument: Any = None, only: str | None = None) -> dict[str, Any]:
    """Return a plan with one card that computes wrong results."""
    return {"cards": [CARD], "spoil": {op: [how, argument, only]}}


def lie(**place: Any) -> dict[str, Any]:
    """Return a plan with one card that reports wrong placement."""
    return {"cards": [CARD], "place": place}


CRASH = "Update the device's driver and the runtime"
WRONG_REMEDY = "update its driver and the runtime.*Use the CPU"
READY: dict[str, Any] = {"state": "ready", "stage": "measured", "layer": None}
