"""Graphs of one operation on a device of ggml."""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from backend.devices._mechanisms.ggml import InitParams

# Takes ggml-base, the context and the input tensors. Returns the tensor of the result.
Build = Callable[[Any, int, list[int]], int]
_CONTEXT_BYTES = 4 * 1024 * 1024


class UnsupportedOperation(Exception):
    """The device does not support the operation."""


@dataclass(frozen=True)
class Input:
    """An input tensor: its number in `enum ggml_type`, and its shape with the contiguous dimension first."""

    kind: int
    shape: Sequence[int]


class Graph:
    """A graph with its tensors in the device's memory. Use it as a context manager.

    Raises UnsupportedOperation, OSError if the memory cannot be allocated.
    """

    def __init__(self, base: Any, backend: int, inputs: Sequence[Input], build: Build) -> None:
        self._base, self._backend = base, backend
        self._context = base.ggml_init(InitParams(_CONTEXT_BYTES, None, True))
        self._buffer = None
        self._tensors = [
            base.ggml_new_tensor_4d(self._context, each.kind, *each.shape, *(1,) * (4 - len(each.shape)))
            for each in inputs
        ]
        self._result = build(base, self._context, self._tensors)
        self._graph = base.ggml_new_graph(self._context)
        base.ggml_build_forward_expand(self._graph, self._result)

    def __enter__(self) -> Graph:
        base = self._base
        if not base.ggml_backend_dev_supports_op(base.ggml_backend_get_device(self._backend), self._result):
            self.__exit__(None, None, None)
            raise UnsupportedOperation("llama.cpp does not support this operation on this device")
        self._buffer = base.ggml_backend_alloc_ctx_tensors(self._context, self._backend)
        if not self._buffer:
            self.__exit__(None, None, None)
            raise OSError("failed to allocate memory on the device")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._buffer:
            self._base.ggml_backend_buffer_free(self._buffer)
        self._base.ggml_free(self._context)

    @property
    def buffer_name(self) -> str:
        """The name of the buffer that holds all tensors."""
        return str(self._base.ggml_backend_buffer_name(self._buffer).decode("ascii", "replace"))

    @property
    def is_in_host_memory(self) -> bool:
        """Whether the buffer is the processor's memory."""
        return bool(self._base.ggml_backend_buffer_is_host(self._buffer))

    def compute(self, data: Sequence[bytes]) -> array[float]:
        """Return the result for these inputs. Raises OSError with ggml's status."""
        for tensor, content in zip(self._tensors, data, strict=True):
            self._base.ggml_backend_tensor_set(tensor, content, 0, len(content))
        self.run()
        count = self._base.ggml_nelements(self._result)
        out = (ctypes.c_float * count)()
        self._base.ggml_backend_tensor_get(self._result, out, 0, 4 * count)
        numbers = array("f")
        numbers.frombytes(bytes(out))
        return numbers

    def run(self) -> float:
        """Run the graph and wait for its end. Returns the seconds. Raises OSError with ggml's status."""
        start = time.perf_counter()
        if status := self._base.ggml_backend_graph_compute(self._backend, self._graph):
            raise OSError(f"llama.cpp returned the status {status} for a computation")
        self._base.ggml_backend_synchronize(self._backend)
        return time.perf_counter() - start
