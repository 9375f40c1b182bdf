"""The network's shape and the names of its weights, the same for every library that computes it.

Two U-Nets, one a stem, of six convolutions down and six transposed ones up, each 5 × 5 with stride 2. What goes down
passes batch normalization and a leaky ReLU (0.2); what comes up a ReLU and then batch normalization, and is joined with
what went down at that size *before* its normalization. At the end a convolution 4 × 4, dilated by 2, and a sigmoid.
TensorFlow's padding "same" puts one zero before and two behind at stride 2, and three on each side at the end.
"""

from __future__ import annotations

STEMS = ("vocals", "accompaniment")
WIDTHS = (16, 32, 64, 128, 256, 512)
CHANNELS = 2
LEVELS = len(WIDTHS)
EPSILON = 1e-3  # of batch normalization, Keras' default
SLOPE = 0.2
STRIDE = 2
PADS = (1, 1, 2, 2)  # before in time and frequency, behind in both: of ONNX's Conv and ConvTranspose
LAST_PADS, LAST_DILATION = (3, 3, 3, 3), 2
MULTIPLE = STRIDE**LEVELS  # what frames and bins must be multiples of

RATE = 44_100
FRAME, STEP = 4096, 1024
BINS = 1024  # that the network sees, of FRAME / 2 + 1


def weights() -> dict[str, tuple[int, ...]]:
    """All weights by name, with their shapes; kernels as ONNX and torch have them."""
    found: dict[str, tuple[int, ...]] = {}
    for stem in STEMS:
        came = CHANNELS
        for level, width in enumerate(WIDTHS):
            found |= _layer(f"{stem}.down.{level}", (width, came, 5, 5), width, normed=level < LEVELS - 1)
            came = width
        for level, width in enumerate((*WIDTHS[-2::-1], 1)):
            found |= _layer(f"{stem}.up.{level}", (came, width, 5, 5), width, normed=True)
            came = 2 * width
        found |= _layer(f"{stem}.last", (CHANNELS, 1, 4, 4), CHANNELS, normed=False)
    return found


def _layer(name: str, kernel: tuple[int, ...], width: int, normed: bool) -> dict[str, tuple[int, ...]]:
    names = ("bias", "gamma", "beta", "mean", "variance") if normed else ("bias",)
    return {f"{name}.kernel": kernel, **{f"{name}.{part}": (width,) for part in names}}
