"""Decoders that run the network in ONNX Runtime, with any execution provider, in float32 or float16.

On the CPU, the KV cache is in NumPy arrays that the session reads in place. With a provider that has device memory, it
stays there as bound outputs. A session with fixed `batch` and `room` dimensions has a batch size of one and a KV cache
of full length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from backend.tasks.music.decoder import Floats, Ints
from backend.tasks.music.weights import Weights

INITIAL_CAPACITY = 128
MASKED_SCORE = -10_000.0  # added to masked attention scores; representable in float16
Memory = tuple[str, int, int]  # device memory as in OrtValue: type, index, vendor


def fixed_shapes(tokens: int) -> dict[str, int]:
    """Return fixed dimensions for one sequence of at most `tokens` tokens, for providers that compile shapes."""
    return {"batch": 1, "room": tokens}


class HostDecoder:
    """A Decoder that runs a "host" graph, with its KV cache in host memory."""

    def __init__(self, weights: Weights, session: Any, fixed: bool = False) -> None:
        self._weights = weights
        self._session = session
        self._fixed_shapes = fixed
        self._dtype = _dtype(session)
        self._caches: dict[str, NDArray[Any]] = {}
        self._outputs = [output.name for output in session.get_outputs()]

    def start(self, batch: int, tokens: int) -> None:
        """Reset the KV cache for `batch` sequences of at most `tokens` tokens."""
        self._position, self._tokens, self._batch = 0, tokens, batch
        self._caches = {}
        self._allocate(tokens if self._fixed_shapes else min(INITIAL_CAPACITY, tokens))

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Append a token to each sequence and return the logits of the next one, [batch, vocabulary] float32."""
        if self._position == self._capacity:
            if self._capacity >= self._tokens:
                raise ValueError(f"a tune is longer than {self._tokens} tokens")
            self._allocate(min(2 * self._capacity, self._tokens))
        cos, sin = self._weights.rotation(self._position)
        inputs = {"x": self._weights.embed(ids, sides), "cos": cos, "sin": sin, "mask": self._mask}
        inputs = {name: array.astype(self._dtype, copy=False) for name, array in inputs.items()}
        logits, *outputs = self._session.run(self._outputs, inputs | self._caches)
        for name, new in zip(self._outputs[1:], outputs, strict=True):
            cache = self._caches[name.removeprefix("new_")]
            if name.startswith("new_key"):
                cache[:, :, :, self._position] = new[:, :, :, 0]
            else:
                cache[:, :, self._position] = new[:, :, 0]
        self._mask[self._position] = 0
        self._position += 1
        result: Floats = logits
        return result

    def _allocate(self, room: int) -> None:
        shape, old = self._weights.shape, self._caches
        self._caches, self._capacity = {}, room
        for layer in range(shape.layers):
            keys = np.zeros((self._batch, shape.heads, shape.head, room), self._dtype)
            values = np.zeros((self._batch, shape.heads, room, shape.head), self._dtype)
            if old:
                keys[..., : self._position] = old[f"key.{layer}"][..., : self._position]
                values[:, :, : self._position] = old[f"value.{layer}"][:, :, : self._position]
            self._caches |= {f"key.{layer}": keys, f"value.{layer}": values}
        self._mask: NDArray[Any] = np.full(room, MASKED_SCORE, self._dtype)
        self._mask[: self._position] = 0


class DeviceDecoder:
    """A Decoder that runs a "device" graph, with its KV cache in the device memory `memory`."""

    def __init__(self, weights: Weights, session: Any, memory: Memory, fixed: bool = False) -> None:
        self._weights = weights
        self._session = session
        self._memory = memory
        self._fixed_shapes = fixed
        self._dtype = _dtype(session)
        self._caches: dict[str, Any] = {}
        self._write_caches: dict[str, Any] = {}  # a step writes here; then the two are swapped

    def start(self, batch: int, tokens: int) -> None:
        """Reset the KV cache for `batch` sequences of at most `tokens` tokens."""
        shape = self._weights.shape
        self._position, self._tokens, self._batch = 0, tokens, batch
        self._capacity = tokens if self._fixed_shapes else min(INITIAL_CAPACITY, tokens)
        arrays = {}
        for layer in range(shape.layers):
            arrays[f"key.{layer}"] = np.zeros((batch, shape.heads, shape.head, self._capacity), self._dtype)
            arrays[f"value.{layer}"] = np.zeros((batch, shape.heads, self._capacity, shape.head), self._dtype)
        self._upload_caches(arrays)

    def step(self, ids: Ints, sides: Ints) -> Floats:
        """Append a token to each sequence and return the logits of the next one, [batch, vocabulary] float32."""
        if self._position == self._capacity:
            self._grow()
        cos, sin = self._weights.rotation(self._position)
        positions = np.arange(self._capacity)
        mask = np.where(positions <= self._position, 0.0, MASKED_SCORE)
        now = (positions == self._position).astype(np.float32)
        binding = self._session.io_binding()
        inputs = {"x": self._weights.embed(ids, sides), "cos": cos, "sin": sin, "mask": mask, "now": now}
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array.astype(self._dtype)))
        binding.bind_output("logits", "cpu")
        for name, value in self._caches.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"new_{name}", self._write_caches[name])
        self._session.run_with_iobinding(binding)
        self._caches, self._write_caches = self._write_caches, self._caches
        self._position += 1
        result: Floats = binding.get_outputs()[0].numpy()
        return result

    def _grow(self) -> None:
        """Double the capacity of the KV cache. The copy through host memory is slow but rare."""
        if self._capacity >= self._tokens:
            raise ValueError(f"a tune is longer than {self._tokens} tokens")
        more = min(self._capacity, self._tokens - self._capacity)
        arrays = {}
        for name, value in self._caches.items():
            axis = 3 if name.startswith("key") else 2
            arrays[name] = np.pad(value.numpy(), [(0, more if number == axis else 0) for number in range(4)])
        self._capacity += more
        self._upload_caches(arrays)

    def _upload_caches(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._caches = {name: ort.OrtValue.ortvalue_from_numpy(each, *self._memory) for name, each in arrays.items()}
        self._write_caches = {
            name: ort.OrtValue.ortvalue_from_numpy(each, *self._memory) for name, each in arrays.items()
        }


def _dtype(session: Any) -> Any:
    kind = next(each.type for each in session.get_inputs() if each.name == "x")
    return np.float16 if kind == "tensor(float16)" else np.float32
