"""From one rate to another, as a stream, by the SoX Resampler library (python-soxr)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from backend.common.errors import Validation
from backend.tasks.stems.separator import Samples


def resampled(blocks: Iterable[Samples], channels: int, source: int, target: int) -> Iterator[Samples]:
    """Blocks [channel, frames] at the rate `target`, without delay. Raises Validation where the library is missing."""
    if source == target:
        yield from blocks
        return
    try:
        import soxr
    except ImportError:
        raise Validation(
            f"The sound has {source} samples a second and the model takes {target}; to resample it, the library "
            "soxr is needed, which there is none of for this system.",
            f"Send it at {target} samples a second.",
        ) from None
    stream = soxr.ResampleStream(source, target, channels, dtype="float32", quality="HQ")
    for block in blocks:
        yield _transposed(stream.resample_chunk(block.T))
    yield _transposed(stream.resample_chunk(np.zeros((0, channels), np.float32), last=True))


def _transposed(frames: Samples) -> Samples:
    return np.ascontiguousarray(frames.T)
