"""A place on a device for an engine's tensors, with evidence of where they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.types import Placement, PlacementPart
from backend.devices._mechanisms.lookup import served
from backend.devices._mechanisms.torch import TorchAccess


@dataclass(frozen=True)
class TorchPlace:
    """`device` is what `tensor.to(…)` takes, `torch` the imported module."""

    id: str
    ground: TorchAccess

    @property
    def torch(self) -> Any:
        """The imported module."""
        return self.ground.torch

    @property
    def device(self) -> Any:
        """The torch.device."""
        return self.ground.device

    @property
    def is_processor(self) -> bool:
        """Whether the device is the processor itself."""
        return self.ground.type == "cpu"

    def synchronize(self) -> None:
        """Waits until the device has done what it was told."""
        self.ground.synchronize()

    def allocated_bytes(self) -> int | None:
        """What torch's allocator has handed out there; None where nothing is counted."""
        return self.ground.allocated_bytes() if self.ground.allocated_bytes else None

    def taken_since(self, free_before: int | None) -> Callable[[], int | None]:
        """Tells what of the card's memory is gone since so much was free: what is loaded, and the driver's share."""

        def taken() -> int | None:
            free = None if free_before is None else self.ground.free_bytes()
            return None if free is None or free_before is None else max(0, free_before - free)

        return taken

    def placement(self, tensors: Iterable[Any]) -> Placement:
        """Where these tensors lie, by bytes, checked against the allocator's count where there is one."""
        sizes: Counter[str] = Counter()
        for tensor in tensors:
            lies = str(tensor.device.type)
            sizes[self.id if lies == self.ground.type else lies] += tensor.numel() * tensor.element_size()
        total, here = sum(sizes.values()), sizes[self.id]
        if not total:
            return Placement(None, [], "The model has no tensors.")
        parts = [PlacementPart(where, size / total) for where, size in sizes.most_common()]
        evidence = f"torch: {here} of {total} bytes of weights lie on {self.device}"
        counted = self.allocated_bytes()
        if counted is None:
            return Placement(here / total, parts, f"{evidence}; its memory is not counted.")
        if counted < here:  # they say so, but nothing was ever taken there
            return Placement(None, [], f"{evidence}, but the allocator counts {counted} bytes there: not known.")
        return Placement(here / total, parts, f"{evidence}; the allocator counts {counted} bytes there.")


def open_place(device: str, found: DetectedDevice | None) -> TorchPlace:
    """The place of a device id. Raises Absent, DeviceNotReady."""
    here, name, listed = served(device, found, "torch", "torch")
    return TorchPlace(device, here.ground(name, listed))
