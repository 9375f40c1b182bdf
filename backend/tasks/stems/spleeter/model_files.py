"""Conversion of Deezer's checkpoint to a model folder: safetensors weights, an ONNX graph, the licence.

Weights are stored as float32 or float16. The graph refers to the weights in the safetensors file as external data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.common.formats.onnx.writer import Outside, Weight
from backend.tasks.music.weights import read_header
from backend.tasks.stems.spleeter.checkpoint import read_index
from backend.tasks.stems.spleeter.graph import build_graph
from backend.tasks.stems.spleeter.network import LEVELS, STEMS, weight_shapes

WEIGHTS, GRAPH, LICENCE = "spleeter.safetensors", "spleeter.onnx", "LICENSE"
_DTYPES = {"float32": ("F32", np.float32), "float16": ("F16", np.float16)}
DTYPES = tuple(_DTYPES)
_ALIGN = 64
Arrays = dict[str, NDArray[np.float32]]


def read_checkpoint(index: bytes, data: NDArray[np.uint8]) -> Arrays:
    """Return the weights in float32 by the names in network.py. Raises ValueError for a missing or wrong tensor."""
    tensors = read_index(index)
    arrays: Arrays = {}
    for name, shape in weight_shapes().items():
        tensor_name = _tensorflow_name(name)
        if tensor_name not in tensors:
            raise ValueError(f"{tensor_name} is missing")
        tensor = tensors[tensor_name]
        raw = data[tensor.offset : tensor.offset + tensor.length].view("<f4").reshape(tensor.shape)
        # TensorFlow's layout is height, width, in, out; for transposed convolutions height, width, out, in.
        array = raw.transpose(3, 2, 0, 1) if name.endswith(".kernel") else raw
        if array.shape != shape:
            raise ValueError(f"{tensor_name} has the shape {array.shape} instead of {shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{tensor_name} has NaN or infinite values")
        arrays[name] = np.ascontiguousarray(array)
    return arrays


def read_weights(path: Path) -> tuple[dict[str, NDArray[Any]], str]:
    """Return the weights of a safetensors file and their dtype. Raises OSError, ValueError for another network."""
    header, start = read_header(path)
    header.pop("__metadata__", None)
    kinds = {code: (dtype, kind) for dtype, (code, kind) in _DTYPES.items()}
    raw = np.memmap(path, np.uint8, "r", start)
    try:
        dtype, kind = kinds[header[next(iter(weight_shapes()))]["dtype"]]
        arrays = {
            name: raw[slice(*header[name]["data_offsets"])].view(kind).reshape(shape)
            for name, shape in weight_shapes().items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} does not contain Spleeter's weights: {error}") from None
    return arrays, dtype


def write_model(arrays: Arrays, dtype: str, folder: Path, licence: str) -> None:
    """Write a model's files with weights of `dtype`, "float32" or "float16". Raises OSError."""
    (folder / LICENCE).write_text(licence, encoding="utf-8")
    code, kind = _DTYPES[dtype]
    offsets: dict[str, tuple[int, int]] = {}
    end = 0
    for name, array in arrays.items():
        size = array.size * np.dtype(kind).itemsize
        offsets[name] = (end, end + size)
        end += size
    header = json.dumps(
        {
            "__metadata__": {"model": "spleeter-2stem", "licence": "MIT, Deezer"},
            **{
                name: {"dtype": code, "shape": arrays[name].shape, "data_offsets": place}
                for name, place in offsets.items()
            },
        }
    ).encode()
    header += b" " * (-(len(header) + 8) % _ALIGN)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(array.astype(kind).tobytes())
    start = len(header) + 8
    graph_weights = [
        Weight(name, dtype, arrays[name].shape, Outside(WEIGHTS, start + begin, end - begin))
        for name, (begin, end) in offsets.items()
    ]
    (folder / GRAPH).write_bytes(build_graph(graph_weights))


def _tensorflow_name(name: str) -> str:
    """Return TensorFlow's name of a weight. It numbers layers in the order of creation, stem after stem."""
    stem, *place, part = name.split(".")
    stem_index = STEMS.index(stem)
    if place[0] == "up":
        kind, number = "conv2d_transpose", stem_index * LEVELS + int(place[1])
        norm = stem_index * 2 * LEVELS + LEVELS + int(place[1])
    else:
        level = LEVELS if place[0] == "last" else int(place[1])
        kind, number = "conv2d", stem_index * (LEVELS + 1) + level
        norm = stem_index * 2 * LEVELS + level
    if part in ("kernel", "bias"):
        return f"{_layer_name(kind, number)}/{part}"
    part = {"mean": "moving_mean", "variance": "moving_variance"}.get(part, part)
    return f"{_layer_name('batch_normalization', norm)}/{part}"


def _layer_name(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind
