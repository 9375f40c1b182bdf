"""The architecture of Spleeter's network and the names of its weights, shared by all libraries that run it.

One U-Net per stem, with six convolutions in the encoder and six transposed convolutions in the decoder, each 5 × 5 with
stride 2. The encoder applies batch normalization and a leaky ReLU (0.2); the decoder a ReLU, then batch normalization.
A skip connection takes the encoder's output *before* normalization. The last layer is a 4 × 4 convolution with dilation
2 and a sigmoid. TensorFlow's padding "same" adds one zero before and two after at stride 2, and three on each side in
the last layer.
"""

from __future__ import annotations

STEMS = ("vocals", "accompaniment")
WIDTHS = (16, 32, 64, 128, 256, 512)
CHANNELS = 2
LEVELS = len(WIDTHS)
EPSILON = 1e-3  # of batch normalization; Keras' default
SLOPE = 0.2
STRIDE = 2
PADS = (1, 1, 2, 2)  # as in ONNX's Conv: before in time and frequency, then after in both
LAST_PADS, LAST_DILATION = (3, 3, 3, 3), 2
MULTIPLE = STRIDE**LEVELS  # frames and bins must be multiples of this

RATE = 44_100
WINDOW, HOP = 4096, 1024
BINS = 1024  # frequency bins in the network's input, out of WINDOW / 2 + 1


def weight_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name. Kernels have the layout of ONNX and torch."""
    shapes: dict[str, tuple[int, ...]] = {}
    for stem in STEMS:
        channels = CHANNELS
        for level, width in enumerate(WIDTHS):
            shapes |= _layer(f"{stem}.down.{level}", (width, channels, 5, 5), width, normed=level < LEVELS - 1)
            channels = width
        for level, width in enumerate((*WIDTHS[-2::-1], 1)):
            shapes |= _layer(f"{stem}.up.{level}", (channels, width, 5, 5), width, normed=True)
            channels = 2 * width
        shapes |= _layer(f"{stem}.last", (CHANNELS, 1, 4, 4), CHANNELS, normed=False)
    return shapes


def _layer(name: str, kernel: tuple[int, ...], width: int, normed: bool) -> dict[str, tuple[int, ...]]:
    names = ("bias", "gamma", "beta", "mean", "variance") if normed else ("bias",)
    return {f"{name}.kernel": kernel, **{f"{name}.{part}": (width,) for part in names}}
