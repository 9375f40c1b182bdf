"""Any DirectX 12 card on Windows and WSL2 through torch-directml."""

from __future__ import annotations

from backend.devices import Backend

BACKEND = Backend(
    name="directml",
    label="DirectML",
    kind="gpu",
    rank=160,
    runtimes=("directml",),
    aliases=("dml",),
)
