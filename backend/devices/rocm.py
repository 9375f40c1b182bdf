"""AMD cards through torch built for ROCm."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="rocm",
    label="ROCm",
    kind="gpu",
    rank=110,
    runtimes=("rocm",),
    aliases=("hip",),
)
