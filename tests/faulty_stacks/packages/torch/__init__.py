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
float32, float16, bfloat16, int64, bool = (dtype(name) for name in DTYPES)
_DEVICE = device  # functions have a parameter of that name


def tensor(data: Any, dtype: dtype | None = None, device: Any = None) -> Tensor:
    """A tensor on a device."""
    kind = dtype.name if dtype else "float32"
    return Tensor(np.array(data, DTYPES[kind]), device or _DEVICE("cpu"), kind)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product."""
    return input @ other


def zeros(*size: Any, dtype: dtype | None = None, device: Any = None) -> Tensor:
    """Zeros."""
    shape = size[0] if isinstance(size[0], tuple) else size
    kind = dtype.name if dtype else "float32"
    return Tensor(np.zeros(shape, DTYPES[kind]), device or _DEVICE("cpu"), kind)


def ones(*size: Any, dtype: dtype | None = None, device: Any = None) -> Tensor:
    """Ones."""
    return zeros(*size, dtype=dtype, device=device).fill_(1)  # type: ignore[no-any-return]


def arange(end: int, device: Any = None) -> Tensor:
    """0, 1, 2 …"""
    return _on(np.arange(end), device)


def from_numpy(array: Any) -> Tensor:
    """The values of an array."""
    return Tensor(array, _DEVICE("cpu"))


def where(condition: Tensor, input: Tensor, other: Tensor) -> Tensor:
    """One or the other, entry by entry."""
    return Tensor(np.where(condition._values, input._values, other._values), input._where)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller one, entry by entry."""
    return Tensor(np.minimum(input._values, other._values), input._where)


def exp(input: Tensor) -> Tensor:
    """Powers of e."""
    return Tensor(np.exp(input._values), input._where)


def cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    """One behind the other."""
    return Tensor(np.concatenate([one._values for one in tensors], dim), tensors[0]._where)


def log_softmax(input: Tensor, dim: int) -> Tensor:
    """Logarithms of the softmax."""
    values = input._values - input._values.max(axis=dim, keepdims=True)
    return Tensor(values - np.log(np.exp(values).sum(axis=dim, keepdims=True)), input._where)


def rsqrt(input: Tensor) -> Tensor:
    """One by the square root, entry by entry."""
    return Tensor(1 / np.sqrt(input._values), input._where, input._kind)


def mean(input: Tensor, dim: int) -> Tensor:
    """Means along one dimension."""
    return input.mean(dim)


def get_float32_matmul_precision() -> str:
    """Whether products of float32 may round their inputs."""
    return str(PLAN.get("precision", "highest"))


def set_num_threads(number: int) -> None:
    """How many threads compute."""


class no_grad:  # noqa: N801 (torch's own name)
    """Nothing here has gradients."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class finfo:  # noqa: N801 (torch's own name)
    """The limits of a type."""

    def __init__(self, type: dtype) -> None:
        facts: Any = np.finfo(DTYPES[type.name])
        self.min = float(facts.min)


def _on(values: Any, where: Any) -> Tensor:
    return Tensor(values, where or _DEVICE("cpu"))


def sum(input: Tensor, dim: int) -> Tensor:
    """Sums along one dimension."""
    return result("sum", input._values.sum(axis=dim, dtype=np.float32), input)


def softmax(input: Tensor, dim: int) -> Tensor:
    """Softmax along one dimension."""
    values = input._values.astype(np.float32)
    powers = np.exp(values - values.max(axis=dim, keepdims=True))
    return result("softmax", powers / powers.sum(axis=dim, keepdims=True), input)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Picks slices."""
    return result("index_select", np.take(input._values, index._values, axis=dim), input)


for _name in PLAN.get("lacks", []):
    globals().pop(_name, None)
    vars(nn.functional).pop(_name, None)
del _plan
