"""Intel cards through torch."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="xpu",
    label="Intel XPU",
    kind="gpu",
    rank=140,
    runtimes=("xpu",),
)
