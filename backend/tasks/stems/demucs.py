"""Separation of a chunk with Hybrid Transformer Demucs, exported to waveform-to-waveform graphs by demucs-onnx.

Rouard, Massa, Défossez, "Hybrid Transformers for Music Source Separation", ICASSP 2023. A graph maps `mix` [1, 2,
frame] to `stems` [1, 4, 2, frame]: drums, bass, other and vocals. Its number of frames is fixed. A model has one graph
for all stems, or one fine-tuned graph per stem, from which only that stem is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backend.common.error_patterns import require_finite
from backend.common.errors import ModelBroken
from backend.tasks.stems.choices import DEMUCS_STEMS
from backend.tasks.stems.separator import Samples, Stop

Compute = Callable[[int, Samples, Stop], Samples]  # (index of the graph, chunk, stop) → all four stems


class DemucsSeparator:
    """A Separator that runs the graphs through `compute`. `shapes` maps each graph's inputs and outputs to shapes."""

    stems = DEMUCS_STEMS
    rate = 44_100

    def __init__(self, compute: Compute, shapes: Sequence[Mapping[str, Sequence[Any]]]) -> None:
        frames = shapes[0].get("mix", [None])[-1]
        expected = {"mix": [None, 2, frames], "stems": [None, len(self.stems), 2, frames]}
        if not isinstance(frames, int) or not all(_shapes_match(each, expected) for each in shapes):
            raise ModelBroken(
                "The graphs are not Demucs graphs, which map mix [1, 2, N] to stems [1, 4, 2, N]; their shapes are "
                f"{[dict(each) for each in shapes]}.",
                "Download the model again.",
            )
        self._compute, self._count, self._frames = compute, len(shapes), frames

    def chunk_frames(self, seconds: float | None) -> int:
        """Return the graphs' fixed number of frames; `seconds` is ignored."""
        return self._frames

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        """Return the stems [4, 2, frame]. Raises Cancelled, and WorkerCrashed for NaN or infinite output."""
        if self._count == 1:
            stems = self._compute(0, chunk, stop)
        else:
            stems = np.stack([self._compute(index, chunk, stop)[index] for index in range(self._count)])
        require_finite(float(np.abs(stems).max()))
        return stems


def _shapes_match(actual: Mapping[str, Sequence[Any]], expected: Mapping[str, Sequence[Any]]) -> bool:
    """Whether the dimensions of a graph are as expected; a dynamic dimension matches any."""
    return all(
        len(actual.get(name, ())) == len(sides)
        and all(not isinstance(is_, int) or side in (None, is_) for is_, side in zip(actual[name], sides, strict=True))
        for name, sides in expected.items()
    )
