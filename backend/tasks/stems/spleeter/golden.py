"""Golden values of Spleeter's network: masks that TensorFlow computes with Deezer's code for a synthetic spectrum.

They come from tests/slow/spleeter_reference.py: the mask of each stem and channel at eight frames and bins.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backend.common.errors import ModelLoadFailed
from backend.tasks.stems.separator import Samples
from backend.tasks.stems.spleeter.network import BINS, CHANNELS, MULTIPLE, STEMS

Compute = Callable[[Samples], Samples]
SAMPLE_POINTS = ((0, 3), (7, 40), (20, 11), (31, 200), (40, 90), (50, 333), (63, 700), (12, 1000))  # frame and bin
MASKS = (
    (0.000000, 0.972102, 0.000124, 0.997448, 0.997440, 0.997440, 0.000011, 0.131929),
    (0.000000, 0.973302, 0.000124, 0.997491, 0.997469, 0.997469, 0.000010, 0.131843),
    (0.960569, 0.000001, 0.989722, 0.000243, 0.000057, 0.007831, 0.996819, 0.198370),
    (0.960498, 0.000001, 0.989730, 0.000244, 0.000058, 0.007862, 0.996807, 0.198519),
)
FRAMES = MULTIPLE
TOLERANCES = {"float32": 0.002, "float16": 0.05}  # measured: TF32 differs by about 0.001, float16 on a CPU by 0.005


def make_spectrum() -> Samples:
    """Return synthetic magnitudes [1, channel, frame, bin]: partials with varying amplitude."""
    channel, frame, bin_ = np.ogrid[:CHANNELS, :FRAMES, :BINS]
    wave = np.abs(np.sin(0.37 * frame + 0.11 * bin_ * (channel + 1))) ** 8
    magnitudes: Samples = (200 * wave * np.exp(-bin_ / 150.0))[None].astype(np.float32)
    return magnitudes


def check_masks(masks: Compute, dtype: str) -> float:
    """Return the largest difference from the golden values. Raises ModelLoadFailed if it exceeds the tolerance."""
    computed = masks(make_spectrum()).reshape(len(STEMS) * CHANNELS, FRAMES, BINS)
    frames, bins = (list(places) for places in zip(*SAMPLE_POINTS, strict=True))
    difference = float(np.abs(computed[:, frames, bins] - np.array(MASKS)).max())
    if not difference <= TOLERANCES[dtype]:
        raise ModelLoadFailed(
            f"The network's output on this device differs from the reference by {difference:.3g}; "
            f"{TOLERANCES[dtype]} is allowed.",
            "Choose another device. If the CPU fails as well, download the model again.",
        )
    return difference
