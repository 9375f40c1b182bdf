"""The interface of a separation model, independent of the network and the library that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
Stop = Callable[[], bool]  # a callback that returns True if the job was cancelled


class Separator(Protocol):
    """A loaded model. It separates stereo chunks of a fixed length at the sample rate `rate` in Hz."""

    stems: tuple[str, ...]
    rate: int

    def chunk_frames(self, seconds: float | None) -> int:
        """Return the supported chunk length nearest to `seconds`, in frames. None: the model's default."""
        ...

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        """Return the stems [stem, 2, frame] of a chunk [2, frame]. Raises Cancelled, WorkerCrashed."""
        ...
