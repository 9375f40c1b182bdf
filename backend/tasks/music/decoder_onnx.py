"""Computes the network with ONNX Runtime, on any of its providers, in float32 or float16.

On the CPU, keys and values stay in NumPy arrays that the session reads in place. Where a provider has memory of its own
they stay there as bound outputs. A session whose `batch` and `room` were fixed takes one row and all of the room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from backend.tasks.music.decoder import Floats, Ints
from backend.tasks.music.weights import Weights

ROOM_FIRST = 128
HIDDEN = -10_000.0  # what the mask adds to a score that must not count; fits float16
Memory = tuple[str, int, int]  # a device's memory as OrtValue names it: type, index, vendor


def fixed_shapes(tokens: int) -> dict[str, int]:
    """The dimensions of a session that takes one row of at most `tokens` tokens, for providers that compile shapes."""
    return {"batch": 1, "room": tokens}


class HostDecoder:
    """A Decoder over a session of a "host" graph."""

    def __init__(self, weights: Weights, session: Any, fixed: bool = False) -> None:
        self._weights = weights
        self._session = session
        self._fixed = fixed
        self._dtype = _dtype(session)
        self._caches: dict[str, NDArray[Any]] = {}
        self._outputs = [output.name for output in session.get_outputs()]

    def start(self, batch: int, tokens: int) -> None:
        """Forgets everything and makes room for `batch` rows of at most `tokens` tokens."""
        self._position, self._tokens, self._batch = 0, tokens, batch
        self._caches = {}
        self._make_room(tokens if self._fixed else min(ROOM_FIRST, tokens))

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Logits [batch, vocabulary] float32 of the token after `ids` [batch]."""
        if self._position == self._room:
            if self._room >= self._tokens:
                raise ValueError(f"a tune is longer than {self._tokens} tokens")
            self._make_room(min(2 * self._room, self._tokens))
        cos, sin = self._weights.rotation(self._position)
        inputs = {"x": self._weights.embed(ids, sides), "cos": cos, "sin": sin, "mask": self._mask}
        inputs = {name: array.astype(self._dtype, copy=False) for name, array in inputs.items()}
        logits, *news = self._session.run(self._outputs, inputs | self._caches)
        for name, new in zip(self._outputs[1:], news, strict=True):
            cache = self._caches[name.removeprefix("new_")]
            if name.startswith("new_key"):
                cache[:, :, :, self._position] = new[:, :, :, 0]
            else:
                cache[:, :, self._position] = new[:, :, 0]
        self._mask[self._position] = 0
        self._position += 1
        found: Floats = logits
        return found

    def _make_room(self, room: int) -> None:
        shape, old = self._weights.shape, self._caches
        self._caches, self._room = {}, room
        for layer in range(shape.layers):
            keys = np.zeros((self._batch, shape.heads, shape.head, room), self._dtype)
            values = np.zeros((self._batch, shape.heads, room, shape.head), self._dtype)
            if old:
                keys[..., : self._position] = old[f"key.{layer}"][..., : self._position]
                values[:, :, : self._position] = old[f"value.{layer}"][:, :, : self._position]
            self._caches |= {f"key.{layer}": keys, f"value.{layer}": values}
        self._mask: NDArray[Any] = np.full(room, HIDDEN, self._dtype)
        self._mask[: self._position] = 0


class DeviceDecoder:
    """A Decoder over a session of a "device" graph, whose keys and values lie in `memory`."""

    def __init__(self, weights: Weights, session: Any, memory: Memory, fixed: bool = False) -> None:
        self._weights = weights
        self._session = session
        self._memory = memory
        self._fixed = fixed
        self._dtype = _dtype(session)
        self._caches: dict[str, Any] = {}
        self._next: dict[str, Any] = {}  # where a step writes; then the two change places

    def start(self, batch: int, tokens: int) -> None:
        """Forgets everything and makes room for `batch` rows of at most `tokens` tokens."""
        shape = self._weights.shape
        self._position, self._tokens, self._batch = 0, tokens, batch
        self._room = tokens if self._fixed else min(ROOM_FIRST, tokens)
        arrays = {}
        for layer in range(shape.layers):
            arrays[f"key.{layer}"] = np.zeros((batch, shape.heads, shape.head, self._room), self._dtype)
            arrays[f"value.{layer}"] = np.zeros((batch, shape.heads, self._room, shape.head), self._dtype)
        self._keep(arrays)

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Logits [batch, vocabulary] float32 of the token after `ids` [batch]."""
        if self._position == self._room:
            self._grow()
        cos, sin = self._weights.rotation(self._position)
        places = np.arange(self._room)
        mask = np.where(places <= self._position, 0.0, HIDDEN)
        now = (places == self._position).astype(np.float32)
        binding = self._session.io_binding()
        given = {"x": self._weights.embed(ids, sides), "cos": cos, "sin": sin, "mask": mask, "now": now}
        for name, array in given.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array.astype(self._dtype)))
        binding.bind_output("logits", "cpu")
        for name, value in self._caches.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"new_{name}", self._next[name])
        self._session.run_with_iobinding(binding)
        self._caches, self._next = self._next, self._caches
        self._position += 1
        found: Floats = binding.get_outputs()[0].numpy()
        return found

    def _grow(self) -> None:
        """Doubles the room; seldom enough that the way over the host does not matter."""
        if self._room >= self._tokens:
            raise ValueError(f"a tune is longer than {self._tokens} tokens")
        more = min(self._room, self._tokens - self._room)
        arrays = {}
        for name, value in self._caches.items():
            axis = 3 if name.startswith("key") else 2
            arrays[name] = np.pad(value.numpy(), [(0, more if number == axis else 0) for number in range(4)])
        self._room += more
        self._keep(arrays)

    def _keep(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._caches = {name: ort.OrtValue.ortvalue_from_numpy(each, *self._memory) for name, each in arrays.items()}
        self._next = {name: ort.OrtValue.ortvalue_from_numpy(each, *self._memory) for name, each in arrays.items()}


def _dtype(session: Any) -> Any:
    kind = next(each.type for each in session.get_inputs() if each.name == "x")
    return np.float16 if kind == "tensor(float16)" else np.float32
