"""The weights file and the embedding lookup on the host, shared by all engines. Needs NumPy only.

The file is safetensors (a length, a JSON header, raw arrays). It is parsed here, so that no engine needs that library.
All weights are float16; engines that compute in float32 convert them.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.common.types import JsonObject
from backend.tasks.music.decoder import Floats, Ints
from backend.tasks.music.grid import SIDES
from backend.tasks.music.network import ROTARY_BASE, Shape

DATA = Path(__file__).parent / "data"
WEIGHTS = DATA / "weights.safetensors"


@dataclass(frozen=True)
class Weights:
    """The weights of the network: `arrays` in float16, by their names in network.py."""

    shape: Shape
    arrays: dict[str, NDArray[np.float16]]

    @cached_property
    def _tables(self) -> list[Floats]:
        names = ["token", *(f"side.{number}" for number in range(len(SIDES)))]
        return [self.arrays[name].astype(np.float32) for name in names]

    def embed(self, ids: Ints, sides: Ints) -> Floats:
        """Return the input of the first layer [batch, width] for `ids` [batch] and `sides` [batch, SIDES]."""
        embedding: Floats = self._tables[0][ids]
        for number in range(len(SIDES)):
            embedding = embedding + self._tables[number + 1][sides[:, number]]
        return embedding

    def rotation(self, position: int) -> tuple[Floats, Floats]:
        """Return the cosines and sines [head / 2] of the rotary position embedding."""
        half = self.shape.head // 2
        angles = position * ROTARY_BASE ** (-np.arange(half) / half)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def read_weights(path: Path = WEIGHTS) -> Weights:
    """Read a weights file. Raises OSError, and ValueError if it does not match network.py."""
    header, start = read_header(path)
    try:
        shape = Shape(**json.loads(header.pop("__metadata__")["shape"]))
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            arrays = {
                name: np.frombuffer(
                    raw[start + each["data_offsets"][0] : start + each["data_offsets"][1]], np.float16
                ).reshape(each["shape"])
                for name, each in header.items()
            }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a weights file: {error}") from None
    if {name: array.shape for name, array in arrays.items()} != shape.weights():
        raise ValueError(f"{path.name} does not belong to this version of the network")
    return Weights(shape, arrays)


def read_header(path: Path) -> tuple[JsonObject, int]:
    """Return the JSON header of a safetensors file and the offset of its arrays. Raises OSError, ValueError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length < 1_000_000:
            raise ValueError(f"{path.name} is not a weights file")
        try:
            return json.loads(file.read(length)), 8 + length
        except ValueError:
            raise ValueError(f"{path.name} is truncated") from None
