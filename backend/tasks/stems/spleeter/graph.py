"""Spleeter's network as an ONNX graph, with its weights in a safetensors file in the same folder."""

from __future__ import annotations

from backend.common.formats.onnx.writer import Node, Value, Weight, write
from backend.tasks.stems.spleeter.network import (
    BINS,
    CHANNELS,
    EPSILON,
    LAST_DILATION,
    LAST_PADS,
    LEVELS,
    PADS,
    SLOPE,
    STEMS,
    STRIDE,
)

NORM = ("gamma", "beta", "mean", "variance")


def build_graph(weights: list[Weight]) -> bytes:
    """Return the ONNX file: `magnitudes` [batch, channel, frame, bin] → `masks` [batch, stem × channel, frame, bin].

    The number of frames must be a multiple of network.MULTIPLE.
    """
    dtype = weights[0].dtype
    nodes: list[Node] = []
    for stem in STEMS:
        nodes += _tower(stem)
    nodes.append(Node("Concat", [f"{stem}.mask" for stem in STEMS], ["masks"], {"axis": 1}))
    inputs = [Value("magnitudes", dtype, ("batch", CHANNELS, "frames", BINS))]
    outputs = [Value("masks", dtype, ("batch", CHANNELS * len(STEMS), "frames", BINS))]
    return write("spleeter-2stem", nodes, inputs, outputs, weights)


def _tower(stem: str) -> list[Node]:
    nodes: list[Node] = []

    def add(operation: str, inputs: list[str], output: str, **attributes: int | float | tuple[int, ...]) -> str:
        nodes.append(Node(operation, inputs, [output], attributes))
        return output

    def add_batch_norm(layer: str, source: str) -> str:
        weights = [f"{layer}.{part}" for part in NORM]
        return add("BatchNormalization", [source, *weights], f"{layer}.normed", epsilon=EPSILON)

    def add_convolution(operation: str, layer: str, source: str, **attributes: int | tuple[int, ...]) -> str:
        return add(operation, [source, f"{layer}.kernel", f"{layer}.bias"], f"{layer}.out", **attributes)

    strided: dict[str, tuple[int, ...]] = {"kernel_shape": (5, 5), "strides": (STRIDE, STRIDE), "pads": PADS}
    x, skips = "magnitudes", []
    for level in range(LEVELS):
        layer = f"{stem}.down.{level}"
        skips.append(add_convolution("Conv", layer, x, **strided))
        if level < LEVELS - 1:
            x = add("LeakyRelu", [add_batch_norm(layer, skips[-1])], f"{layer}.on", alpha=SLOPE)
    x = skips.pop()
    for level in range(LEVELS):
        layer = f"{stem}.up.{level}"
        up = add_convolution("ConvTranspose", layer, x, **strided)
        x = add_batch_norm(layer, add("Relu", [up], f"{layer}.on"))
        if skips:
            x = add("Concat", [skips.pop(), x], f"{layer}.joined", axis=1)
    dilations = (LAST_DILATION, LAST_DILATION)
    last = add_convolution("Conv", f"{stem}.last", x, kernel_shape=(4, 4), pads=LAST_PADS, dilations=dilations)
    add("Sigmoid", [last], f"{stem}.mask")
    return nodes
