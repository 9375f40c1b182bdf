"""What this torch says it was built for."""

from __future__ import annotations

from ._plan import PLAN

cuda: str | None = PLAN.get("cuda", "13.0")
hip: str | None = PLAN.get("hip")
xpu: str | None = PLAN.get("xpu")
