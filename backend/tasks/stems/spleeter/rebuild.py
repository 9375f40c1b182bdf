"""From Deezer's checkpoint to a model's folder: weights as safetensors, a graph for ONNX Runtime, the licence.

In float16 the same numbers take half the bytes. The graph's weights are those of the safetensors file, in place.
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
from backend.tasks.stems.spleeter.graph import graph
from backend.tasks.stems.spleeter.network import LEVELS, STEMS, weights

WEIGHTS, GRAPH, LICENCE = "spleeter.safetensors", "spleeter.onnx", "LICENSE"
_DTYPES = {"float32": ("F32", np.float32), "float16": ("F16", np.float16)}
DTYPES = tuple(_DTYPES)
_ALIGN = 64
Arrays = dict[str, NDArray[np.float32]]


def read_checkpoint(index: bytes, data: NDArray[np.uint8]) -> Arrays:
    """The weights under our names, float32. Raises ValueError where one is missing, or has another shape."""
    tensors = read_index(index)
    arrays: Arrays = {}
    for name, shape in weights().items():
        theirs = _their_name(name)
        if theirs not in tensors:
            raise ValueError(f"{theirs} is missing")
        tensor = tensors[theirs]
        raw = data[tensor.offset : tensor.offset + tensor.length].view("<f4").reshape(tensor.shape)
        # TensorFlow has height, width, in, out; its transposed convolutions height, width, out, in.
        array = raw.transpose(3, 2, 0, 1) if name.endswith(".kernel") else raw
        if array.shape != shape:
            raise ValueError(f"{theirs} has the shape {array.shape} instead of {shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{theirs} has numbers that are none")
        arrays[name] = np.ascontiguousarray(array)
    return arrays


def read_weights(path: Path) -> tuple[dict[str, NDArray[Any]], str]:
    """The weights of a model's file and their dtype. Raises OSError, ValueError where it is none of this network."""
    header, start = read_header(path)
    header.pop("__metadata__", None)
    kinds = {code: (dtype, kind) for dtype, (code, kind) in _DTYPES.items()}
    raw = np.memmap(path, np.uint8, "r", start)
    try:
        dtype, kind = kinds[header[next(iter(weights()))]["dtype"]]
        arrays = {
            name: raw[slice(*header[name]["data_offsets"])].view(kind).reshape(shape)
            for name, shape in weights().items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} does not hold this network's weights: {error}") from None
    return arrays, dtype


def write_model(arrays: Arrays, dtype: str, folder: Path, licence: str) -> None:
    """Writes the files of a model whose weights are of `dtype`. Raises OSError."""
    (folder / LICENCE).write_text(licence, encoding="utf-8")
    code, kind = _DTYPES[dtype]
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for name, array in arrays.items():
        size = array.size * np.dtype(kind).itemsize
        places[name] = (at, at + size)
        at += size
    header = json.dumps(
        {
            "__metadata__": {"model": "spleeter-2stem", "licence": "MIT, Deezer"},
            **{
                name: {"dtype": code, "shape": arrays[name].shape, "data_offsets": place}
                for name, place in places.items()
            },
        }
    ).encode()
    header += b" " * (-(len(header) + 8) % _ALIGN)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(array.astype(kind).tobytes())
    start = len(header) + 8
    found = [
        Weight(name, dtype, arrays[name].shape, Outside(WEIGHTS, start + begin, end - begin))
        for name, (begin, end) in places.items()
    ]
    (folder / GRAPH).write_bytes(graph(found))


def _their_name(name: str) -> str:
    """TensorFlow numbers its layers in the order in which Spleeter makes them, stem after stem."""
    stem, *place, part = name.split(".")
    which = STEMS.index(stem)
    if place[0] == "up":
        kind, number = "conv2d_transpose", which * LEVELS + int(place[1])
        norm = which * 2 * LEVELS + LEVELS + int(place[1])
    else:
        level = LEVELS if place[0] == "last" else int(place[1])
        kind, number = "conv2d", which * (LEVELS + 1) + level
        norm = which * 2 * LEVELS + level
    if part in ("kernel", "bias"):
        return f"{_numbered(kind, number)}/{part}"
    part = {"mean": "moving_mean", "variance": "moving_variance"}.get(part, part)
    return f"{_numbered('batch_normalization', norm)}/{part}"


def _numbered(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind
