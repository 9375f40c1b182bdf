"""A model that another program stores, and the store where it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StoredModel:
    """One model of a store. `path` is what an engine loads: a file, the first part of a split file, or a folder.

    `reason` and `remedy`: optional, why it cannot be used; then `path` may be None.
    """

    program: str
    name: str
    path: Path | None
    projector: Path | None = None
    notices: tuple[str, ...] = ()
    reason: str | None = None
    remedy: str | None = None

    @property
    def source(self) -> str:
        """The source by which it is added."""
        return f"{self.program}:{self.name}"


@dataclass(frozen=True)
class Store:
    """One folder that was searched. `reason`: optional, why it has no models or why some were left out."""

    program: str
    path: Path
    models: int = 0
    reason: str | None = None
