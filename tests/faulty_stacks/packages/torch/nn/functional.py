"""Convolution."""

from __future__ import annotations

import numpy as np

from .._tensor import Tensor, result


def conv2d(input: Tensor, weight: Tensor) -> Tensor:
    """Cross-correlation, stride 1, without padding."""
    image, filters = input._values, weight._values
    side = filters.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(image, (side, side), axis=(2, 3))
    return result("conv2d", np.einsum("nchwyx,ocyx->nohw", windows, filters).astype(image.dtype), input)
