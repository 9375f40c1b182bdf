"""What the server orders of a load's memory plan: the user's settings, limits, and what was measured before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.common.memory_plan.buffers import Corrections
from backend.common.memory_plan.plan import PlanSettings


@dataclass(frozen=True)
class PlanOrder:
    """The order of a load. `limit_bytes`: optional, what the model may take of the device.

    `corrections` are those of earlier loads, by `correction_key`.
    """

    settings: PlanSettings = field(default_factory=PlanSettings)
    limit_bytes: int | None = None
    corrections: dict[str, Corrections] = field(default_factory=dict)

    def corrections_for(self, build: str, backend: str) -> Corrections:
        """Return what was measured with a build on a backend."""
        return self.corrections.get(correction_key(build, backend), Corrections())


def correction_key(build: str, backend: str) -> str:
    """Return the name of a build on a backend."""
    return f"{build}|{backend}"


def plan_order_from(fields: Mapping[str, Any]) -> PlanOrder:
    """Parse a PlanOrder from its JSON object."""
    corrections = {name: Corrections(**each) for name, each in fields["corrections"].items()}
    return PlanOrder(PlanSettings(**fields["settings"]), fields["limit_bytes"], corrections)
