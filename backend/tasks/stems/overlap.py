"""Cuts a stream into chunks that overlap, has each separated, and adds them again with a cross-fade between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from backend.tasks.stems.separator import Samples, Separator, Stop

OVERLAP_S = 1.0
OVERLAP_MOST = 4  # of a chunk at most one part in so many


def separated(
    blocks: Iterable[Samples], channels: int, separator: Separator, frames: int, stop: Stop
) -> Iterator[Samples]:
    """[stem, channel, some] after another, as many frames as came. `frames` is the length of a chunk.

    Raises what the separator raises.
    """
    overlap = min(round(OVERLAP_S * separator.rate), frames // OVERLAP_MOST)
    rising = np.linspace(0, 1, overlap + 2, dtype=np.float32)[1:-1]
    waiting, tail = np.zeros((channels, 0), np.float32), None
    source, ended = iter(blocks), False
    while not ended or waiting.shape[1]:
        pieces = [waiting]
        while not ended and sum(piece.shape[1] for piece in pieces) <= frames:
            block = next(source, None)
            ended = block is None
            pieces += [] if block is None else [block]
        waiting = np.concatenate(pieces, 1)
        came = waiting.shape[1]
        if not came:
            return
        last = came <= frames
        chunk = waiting[:, :frames]
        if last:
            chunk = np.pad(chunk, ((0, 0), (0, frames - came)))
        stems = _all_channels(chunk, separator, stop)
        if tail is not None:
            stems[:, :, :overlap] = stems[:, :, :overlap] * rising + tail * (1 - rising)
        if last:
            yield stems[:, :, :came]
            return
        yield stems[:, :, : frames - overlap]
        tail, waiting = stems[:, :, frames - overlap :], waiting[:, frames - overlap :]


def _all_channels(chunk: Samples, separator: Separator, stop: Stop) -> Samples:
    """[stem, channel, frames]: two channels at a time, as the model knows music; one alone stands on both sides."""
    found = np.empty((len(separator.stems), *chunk.shape), np.float32)
    for first in range(0, len(chunk), 2):
        pair = chunk[first : first + 2]
        stems = separator.separate(pair if len(pair) == 2 else np.repeat(pair, 2, 0), stop)
        found[:, first : first + 2] = stems if len(pair) == 2 else stems.mean(1, keepdims=True)
    return found
