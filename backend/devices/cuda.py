"""NVIDIA cards through torch."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="cuda",
    label="CUDA",
    kind="gpu",
    rank=100,
    runtimes=(
        "cuda",
        "torch",
    ),
)
