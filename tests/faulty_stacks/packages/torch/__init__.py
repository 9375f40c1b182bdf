"""A stand-in for torch 2.13: what it offers is what the real one has, and behaves so unless the plan says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _plan
from ._plan import PLAN, OutOfMemoryError, reach
from ._tensor import DTYPES, Tensor, device, dtype, result

reach("import")

from . import backends, cuda, nn, version, xpu  # noqa: E402

__version__: str = PLAN.get("version", "2.13.0+cu130")
__all__ = ["OutOfMemoryError", "Tensor", "backends", "cuda", "device", "dtype", "nn", "version", "xpu"]
float32, float16, int64 = (dtype(name) for name in DTYPES)


def tensor(data: Any, dtype: dtype | None = None) -> Tensor:
    """A tensor on the processor."""
    return Tensor(np.array(data, DTYPES[dtype.name] if dtype else np.float32), device("cpu"))


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product."""
    return input @ other


def zeros(*size: int) -> Tensor:
    """Zeros on the processor."""
    return Tensor(np.zeros(size, np.float32), device("cpu"))


def sum(input: Tensor, dim: int) -> Tensor:
    """Sums along one dimension."""
    return result("sum", input._values.sum(axis=dim, dtype=np.float32), input)


def softmax(input: Tensor, dim: int) -> Tensor:
    """Softmax along one dimension."""
    powers = np.exp(input._values - input._values.max(axis=dim, keepdims=True))
    return result("softmax", (powers / powers.sum(axis=dim, keepdims=True)).astype(np.float32), input)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Picks slices."""
    return result("index_select", np.take(input._values, index._values, axis=dim), input)


for _name in PLAN.get("lacks", []):
    globals().pop(_name, None)
del _plan
