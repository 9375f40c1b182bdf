"""An open device for an engine's tensors, with evidence of where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from backend.common.device_api import TorchAccess
from backend.common.types import Placement, PlacementPart


@dataclass(frozen=True)
class TorchPlace:
    """A device that an engine computes on through torch."""

    id: str
    access: TorchAccess

    @property
    def torch(self) -> Any:
        """The imported torch module."""
        return self.access.torch

    @property
    def device(self) -> Any:
        """The torch.device, as `tensor.to` accepts it."""
        return self.access.device

    @property
    def is_processor(self) -> bool:
        """Whether the device is the processor."""
        return self.access.type == "cpu"

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""
        self.access.synchronize()

    def allocated_bytes(self) -> int | None:
        """Return the bytes in use by torch's allocator there, None if it does not count."""
        return self.access.allocated_bytes() if self.access.allocated_bytes else None

    def taken_since(self, free_before: int | None) -> Callable[[], int | None]:
        """Return a function that returns the card's memory use since then: the model and the driver's share.

        `free_before`: optional, free bytes before the load. Without it the function returns None.
        """

        def taken() -> int | None:
            free = None if free_before is None else self.access.free_bytes()
            return None if free is None or free_before is None else max(0, free_before - free)

        return taken

    def placement(self, tensors: Iterable[Any]) -> Placement:
        """Return where these tensors are, by bytes, checked against the allocator's count if there is one."""
        sizes: Counter[str] = Counter()
        for tensor in tensors:
            actual = str(tensor.device.type)
            sizes[self.id if actual == self.access.type else actual] += tensor.numel() * tensor.element_size()
        total, here = sum(sizes.values()), sizes[self.id]
        if not total:
            return Placement(None, [], "The model has no tensors.")
        parts = [PlacementPart(where, size / total) for where, size in sizes.most_common()]
        evidence = f"torch: {here} of {total} bytes of weights are on {self.device}"
        counted = self.allocated_bytes()
        if counted is None:
            return Placement(here / total, parts, f"{evidence}; its memory is not counted.")
        if counted < here:  # the tensors name this device, but its memory was never allocated
            return Placement(
                None, [], f"{evidence}, but the allocator counts {counted} bytes there: placement unknown."
            )
        return Placement(here / total, parts, f"{evidence}; the allocator counts {counted} bytes there.")
