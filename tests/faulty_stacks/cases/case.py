"""The matrix: mechanism by mechanism, what goes wrong in a stack, and what the device list must say of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

CARD = {"uuid": "3f2b1c4d-0a5e-4f6b-8c7d-9e0f1a2b3c4d", "pci_domain_id": 0, "pci_bus_id": 1, "pci_device_id": 0}
TWIN = CARD | {"uuid": "3f2b1c4d-0a5e-4f6b-8c7d-9e0f1a2b3c4e", "pci_bus_id": 2}
PCI, TWIN_PCI = "pci:0000:01:00.0", "pci:0000:02:00.0"
SECRET = "hf_" + "Qw3rTy9uIoPaSdFgHjKl"  # noqa: S105 (nobody's)
TORCH, DIRECTML = ("torch",), ("torch", "torch_directml")


@dataclass(frozen=True)
class Case:
    """A stack, and the device that it shows: state, stage, layer, and words of reason and remedy."""

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

    @property
    def name(self) -> str:
        """For the test's id, and the folder's."""
        return re.sub(r"[^\w.-]+", "_", f"{self.mechanism}-{self.variant}")

    @property
    def shares(self) -> bool:
        """Whether the stack lists one card rightly, so that other stacks can be on the same machine."""
        return self.plan.get("cards") == [CARD] and self.stage in ("visible", "measured") and self.device == "cuda:0"

    @property
    def several(self) -> bool:
        """Whether the stack has other devices, which work."""
        return len(self.plan.get("cards", [])) > 1


def card(number: int) -> dict[str, Any]:
    """One of several cards of a machine."""
    return CARD | {"uuid": f"3f2b1c4d-0a5e-4f6b-8c7d-{number:012x}", "pci_bus_id": 16 + number}


def at(point: str, action: str, argument: Any, **more: Any) -> dict[str, Any]:
    """A plan with one card where something happens at one point."""
    return {"cards": [CARD], "at": {point: [[action, argument]]}, **more}


def spoil(op: str, how: str, argument: Any = None, only: str | None = None) -> dict[str, Any]:
    """A plan with one card that computes wrongly."""
    return {"cards": [CARD], "spoil": {op: [how, argument, only]}}


def lie(**place: Any) -> dict[str, Any]:
    """A plan with one card where data does not lie as it is said."""
    return {"cards": [CARD], "place": place}


CRASH = "Update the device's driver and the runtime"
WRONG_REMEDY = "update its driver and the runtime.*Use the CPU"
READY: dict[str, Any] = {"state": "ready", "stage": "measured", "layer": None}
