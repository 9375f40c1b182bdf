"""Spleeter's network in torch, on any device, in the dtype of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from backend.tasks.audio.progress import Cancelled
from backend.tasks.stems.separator import Stop
from backend.tasks.stems.spleeter.network import EPSILON, LAST_DILATION, LAST_PADS, LEVELS, PADS, SLOPE, STEMS, STRIDE

Tensors = Mapping[str, "torch.Tensor"]


def compute_masks(weights: Tensors, magnitudes: torch.Tensor, stop: Stop) -> torch.Tensor:
    """Return masks [batch, stem × channel, frame, bin] of magnitudes [batch, channel, frame, bin]. Raises Cancelled."""
    with torch.inference_mode():
        return torch.cat([_tower(weights, stem, magnitudes, stop) for stem in STEMS], 1)


def _tower(weights: Tensors, stem: str, x: torch.Tensor, stop: Stop) -> torch.Tensor:
    skips = []
    for level in range(LEVELS):
        _raise_if_stopped(stop)
        layer = f"{stem}.down.{level}"
        padded = functional.pad(x, (PADS[1], PADS[3], PADS[0], PADS[2]))
        skips.append(functional.conv2d(padded, *_kernel(weights, layer), stride=STRIDE))
        if level < LEVELS - 1:
            x = functional.leaky_relu(_batch_norm(weights, layer, skips[-1]), SLOPE)
    x = skips.pop()
    for level in range(LEVELS):
        _raise_if_stopped(stop)
        layer = f"{stem}.up.{level}"
        height, width = x.shape[2] * STRIDE, x.shape[3] * STRIDE
        full = functional.conv_transpose2d(x, *_kernel(weights, layer), stride=STRIDE)
        up = full[:, :, PADS[0] : PADS[0] + height, PADS[1] : PADS[1] + width]
        x = _batch_norm(weights, layer, functional.relu(up))
        if skips:
            x = torch.cat([skips.pop(), x], 1)
    last = functional.conv2d(functional.pad(x, LAST_PADS), *_kernel(weights, f"{stem}.last"), dilation=LAST_DILATION)
    return torch.sigmoid(last)


def _raise_if_stopped(stop: Stop) -> None:
    if stop():
        raise Cancelled


def _kernel(weights: Tensors, layer: str) -> tuple[Any, Any]:
    return weights[f"{layer}.kernel"], weights[f"{layer}.bias"]


def _batch_norm(weights: Tensors, layer: str, x: torch.Tensor) -> torch.Tensor:
    mean, variance, gamma, beta = (weights[f"{layer}.{part}"] for part in ("mean", "variance", "gamma", "beta"))
    return functional.batch_norm(x, mean, variance, gamma, beta, eps=EPSILON)
