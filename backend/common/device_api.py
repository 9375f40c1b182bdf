"""What a backend tells of a device, as server and workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.common.types import DeviceKind


@dataclass(frozen=True)
class DetectedDevice:
    """One device as a library lists it with nothing hidden, before anything was computed on it.

    `identity` is what tells it from others, as far as the library says: `pci` (0000:01:00.0), `uuid`, `luid`. Without
    it only `position` among the `count` listed ones is left.
    """

    name: str
    kind: DeviceKind
    hardware_id: str | None
    memory_bytes: int | None
    memory_free_bytes: int | None
    library: str = ""
    position: int = 0
    count: int = 1
    identity: dict[str, str] = field(default_factory=dict)
    architecture: str | None = None
    provider: str | None = None
