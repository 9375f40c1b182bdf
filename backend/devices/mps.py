"""Apple's GPU through torch."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="mps",
    label="Apple Metal (MPS)",
    kind="gpu",
    rank=150,
    runtimes=("torch",),
    indexed=False,
)
