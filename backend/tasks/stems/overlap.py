"""Chunked separation of a stream: overlapping chunks are separated and joined with a linear crossfade."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from backend.tasks.stems.separator import Samples, Separator, Stop

OVERLAP_S = 1.0
OVERLAP_DIVISOR = 4  # the overlap is at most a quarter of a chunk


def separate_stream(
    blocks: Iterable[Samples], channels: int, separator: Separator, frames: int, stop: Stop
) -> Iterator[Samples]:
    """Yield the stems of a stream in blocks [stem, channel, frame], in total as many frames as the input has.

    `blocks` are [channel, frame] at the separator's rate; `frames` is the length of a chunk. Raises the separator's
    exceptions.
    """
    overlap = min(round(OVERLAP_S * separator.rate), frames // OVERLAP_DIVISOR)
    fade_in = np.linspace(0, 1, overlap + 2, dtype=np.float32)[1:-1]
    pending, tail = np.zeros((channels, 0), np.float32), None
    source, ended = iter(blocks), False
    while not ended or pending.shape[1]:
        pieces = [pending]
        while not ended and sum(piece.shape[1] for piece in pieces) <= frames:
            block = next(source, None)
            ended = block is None
            pieces += [] if block is None else [block]
        pending = np.concatenate(pieces, 1)
        available = pending.shape[1]
        if not available:
            return
        last = available <= frames
        chunk = pending[:, :frames]
        if last:
            chunk = np.pad(chunk, ((0, 0), (0, frames - available)))
        stems = _separate_channels(chunk, separator, stop)
        if tail is not None:
            stems[:, :, :overlap] = stems[:, :, :overlap] * fade_in + tail * (1 - fade_in)
        if last:
            yield stems[:, :, :available]
            return
        yield stems[:, :, : frames - overlap]
        tail, pending = stems[:, :, frames - overlap :], pending[:, frames - overlap :]


def _separate_channels(chunk: Samples, separator: Separator, stop: Stop) -> Samples:
    """Return the stems [stem, channel, frame] of a chunk. Channels are separated in pairs; a single one is doubled."""
    out = np.empty((len(separator.stems), *chunk.shape), np.float32)
    for first in range(0, len(chunk), 2):
        pair = chunk[first : first + 2]
        stems = separator.separate(pair if len(pair) == 2 else np.repeat(pair, 2, 0), stop)
        out[:, first : first + 2] = stems if len(pair) == 2 else stems.mean(1, keepdims=True)
    return out
