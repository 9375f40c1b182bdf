"""Separates a chunk with Hybrid Transformer Demucs as graphs of sound to sound: those of the package demucs-onnx.

Rouard, Massa, Défossez, "Hybrid Transformers for Music Source Separation", ICASSP 2023. A graph takes `mix` [1, 2,
frame] and gives `stems` [1, 4, 2, frame], drums, bass, other and vocals, with a length of its own. There is one for
all, or one that is best for each stem, of which that stem is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backend.common.error_patterns import require_finite
from backend.common.errors import ModelBroken
from backend.tasks.stems.choices import DEMUCS_STEMS
from backend.tasks.stems.separator import Samples, Stop

Compute = Callable[[int, Samples, Stop], Samples]  # which graph, a chunk → all four stems


class DemucsSeparator:
    """A Separator over whatever computes the graphs. `shapes` are those of each graph's inputs and outputs by name."""

    stems = DEMUCS_STEMS
    rate = 44_100

    def __init__(self, compute: Compute, shapes: Sequence[Mapping[str, Sequence[Any]]]) -> None:
        frames = shapes[0].get("mix", [None])[-1]
        wanted = {"mix": [None, 2, frames], "stems": [None, len(self.stems), 2, frames]}
        if not isinstance(frames, int) or not all(_fits(each, wanted) for each in shapes):
            raise ModelBroken(
                "The graphs are not those of Demucs, which take mix [1, 2, N] and give stems [1, 4, 2, N]; they have "
                f"{[dict(each) for each in shapes]}.",
                "Fetch the model again.",
            )
        self._compute, self._count, self._frames = compute, len(shapes), frames

    def chunk_frames(self, seconds: float | None) -> int:
        """The graphs have one length."""
        return self._frames

    def separate(self, chunk: Samples, stop: Stop) -> Samples:
        """[4, 2, frames]. Raises Stopped, and WorkerCrashed where a graph gives no numbers."""
        if self._count == 1:
            found = self._compute(0, chunk, stop)
        else:
            found = np.stack([self._compute(which, chunk, stop)[which] for which in range(self._count)])
        require_finite(float(np.abs(found).max()))
        return found


def _fits(found: Mapping[str, Sequence[Any]], wanted: Mapping[str, Sequence[Any]]) -> bool:
    """Whether the sides that a graph states are as wanted; some are left open."""
    return all(
        len(found.get(name, ())) == len(sides)
        and all(not isinstance(is_, int) or side in (None, is_) for is_, side in zip(found[name], sides, strict=True))
        for name, sides in wanted.items()
    )
