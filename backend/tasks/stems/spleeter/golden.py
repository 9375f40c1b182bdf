"""What TensorFlow computes of a made-up spectrum with Deezer's own code and checkpoint: the measure of every other way.

The numbers come from tests/slow/spleeter_reference.py: masks of each stem and channel at some frames and bins.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backend.common.errors import ModelLoadFailed
from backend.tasks.stems.separator import Samples
from backend.tasks.stems.spleeter.network import BINS, CHANNELS, MULTIPLE, STEMS

Compute = Callable[[Samples], Samples]
PLACES = ((0, 3), (7, 40), (20, 11), (31, 200), (40, 90), (50, 333), (63, 700), (12, 1000))  # frame and bin
MASKS = (
    (0.000000, 0.972102, 0.000124, 0.997448, 0.997440, 0.997440, 0.000011, 0.131929),
    (0.000000, 0.973302, 0.000124, 0.997491, 0.997469, 0.997469, 0.000010, 0.131843),
    (0.960569, 0.000001, 0.989722, 0.000243, 0.000057, 0.007831, 0.996819, 0.198370),
    (0.960498, 0.000001, 0.989730, 0.000244, 0.000058, 0.007862, 0.996807, 0.198519),
)
FRAMES = MULTIPLE
TOLERANCES = {"float32": 0.002, "float16": 0.05}  # TF32 is off by some 0.001, float16 on a processor by 0.005


def spectrum() -> Samples:
    """Magnitudes [1, channel, frame, bin] of partials that come and go."""
    channel, frame, bin_ = np.ogrid[:CHANNELS, :FRAMES, :BINS]
    wave = np.abs(np.sin(0.37 * frame + 0.11 * bin_ * (channel + 1))) ** 8
    found: Samples = (200 * wave * np.exp(-bin_ / 150.0))[None].astype(np.float32)
    return found


def check(masks: Compute, dtype: str) -> float:
    """Computes the masks and returns the largest difference. Raises ModelLoadFailed where it is too large."""
    found = masks(spectrum()).reshape(len(STEMS) * CHANNELS, FRAMES, BINS)
    frames, bins = (list(places) for places in zip(*PLACES, strict=True))
    difference = float(np.abs(found[:, frames, bins] - np.array(MASKS)).max())
    if not difference <= TOLERANCES[dtype]:
        raise ModelLoadFailed(
            f"The network gives other numbers here than where it was trained: off by {difference:.3g}, "
            f"with {TOLERANCES[dtype]} allowed.",
            "Choose another device. If it is so on the processor as well, fetch the model again.",
        )
    return difference
