"""Streaming sample rate conversion with the SoX Resampler library (python-soxr)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from backend.common.errors import Validation
from backend.tasks.stems.separator import Samples


def resample_stream(blocks: Iterable[Samples], channels: int, source: int, target: int) -> Iterator[Samples]:
    """Yield blocks [channel, frame] resampled from `source` to `target` Hz, with the filter's delay compensated.

    Raises Validation if soxr is not installed.
    """
    if source == target:
        yield from blocks
        return
    try:
        import soxr
    except ImportError:
        raise Validation(
            f"The audio has a sample rate of {source} Hz and the model needs {target} Hz; resampling needs the "
            "package soxr, which is not available for this platform.",
            f"Send audio with a sample rate of {target} Hz.",
        ) from None
    stream = soxr.ResampleStream(source, target, channels, dtype="float32", quality="HQ")
    for block in blocks:
        yield _transpose(stream.resample_chunk(block.T))
    yield _transpose(stream.resample_chunk(np.zeros((0, channels), np.float32), last=True))


def _transpose(frames: Samples) -> Samples:
    return np.ascontiguousarray(frames.T)
