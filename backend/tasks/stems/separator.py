"""What a separation asks of a model, whichever network and library compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
Stop = Callable[[], bool]  # True means: stop now


class Separator(Protocol):
    """A model on a device. It works on chunks of stereo sound of one length at one rate."""

    stems: tuple[str, ...]
    rate: int

    def chunk_frames(self, seconds: float | None) -> int:
        """The length nearest to `seconds` that the network takes, its own where that is None."""
        ...

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        """[stem, 2, frames] of a chunk [2, frames] as long as `chunk_frames` says. Raises Stopped, WorkerCrashed."""
        ...
