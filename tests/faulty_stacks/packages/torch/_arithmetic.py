"""What tensors do with each other: NumPy's arithmetic under torch's names, on the device of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _bare(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_bare(part) for part in value)
    return value._values if isinstance(value, Arithmetic) else value


def _binary(compute: Callable[[Any, Any], Any], turned: bool = False) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        first, second = (_bare(other), self._values) if turned else (self._values, _bare(other))
        return self._like(compute(first, second))

    return operator


class Arithmetic:
    """The operations of a tensor that need nothing of its device. Slices share their memory with the whole."""

    _values: Any
    _where: Any
    _kind: str

    def _like(self, values: Any) -> Any:
        values = np.asarray(values)
        short = values.dtype == np.float64  # NumPy computes so with numbers of Python; torch does not
        return type(self)(values.astype(np.float32) if short else values, self._where, self._kind)  # type: ignore[call-arg]

    __add__, __mul__, __sub__ = _binary(np.add), _binary(np.multiply), _binary(np.subtract)
    __truediv__, __and__, __or__ = _binary(np.divide), _binary(np.logical_and), _binary(np.logical_or)
    __lt__, __le__, __gt__, __ge__ = (
        _binary(np.less),
        _binary(np.less_equal),
        _binary(np.greater),
        _binary(np.greater_equal),
    )
    __radd__, __rmul__, __rsub__ = _binary(np.add), _binary(np.multiply), _binary(np.subtract, turned=True)

    def __invert__(self) -> Any:
        return self._like(~self._values)

    def __iadd__(self, other: Any) -> Any:
        self._values += _bare(other)
        return self

    def __getitem__(self, place: Any) -> Any:
        return self._like(self._values[_bare(place)])

    def __setitem__(self, place: Any, value: Any) -> None:
        self._values[_bare(place)] = _bare(value)

    def __len__(self) -> int:
        return len(self._values)

    def __float__(self) -> float:
        return float(self._values)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._values.shape)

    def abs(self) -> Any:
        return self._like(np.abs(self._values))

    def max(self) -> Any:
        return self._like(self._values.max())

    def amax(self, dim: int, keepdim: bool = False) -> Any:
        return self._like(self._values.max(axis=dim, keepdims=keepdim))

    def argmax(self, dim: int, keepdim: bool = False) -> Any:
        return self._like(self._values.argmax(axis=dim, keepdims=keepdim))

    def sum(self, dim: int, keepdim: bool = False) -> Any:
        return self._like(self._values.sum(axis=dim, keepdims=keepdim))

    def cumsum(self, dim: int) -> Any:
        return self._like(self._values.cumsum(axis=dim))

    def topk(self, k: int, dim: int) -> tuple[Any, Any]:
        ids = np.argsort(-self._values, axis=dim, kind="stable")[..., :k]
        return self._like(np.take_along_axis(self._values, ids, dim)), self._like(ids)

    def gather(self, dim: int, index: Any) -> Any:
        return self._like(np.take_along_axis(self._values, index._values, dim))

    def scatter_add_(self, dim: int, index: Any, src: Any) -> Any:
        rows = np.arange(len(index._values))[:, None]
        np.add.at(self._values, (rows, index._values), src._values)
        return self

    def clamp(self, min: float | None = None, max: float | None = None) -> Any:  # noqa: A002 (torch's own names)
        return self._like(np.clip(self._values, min, max).astype(self._values.dtype))

    def index_select(self, dim: int, index: Any) -> Any:
        return self._like(np.take(self._values, index._values, axis=dim))

    def expand(self, *sizes: int) -> Any:
        return self._like(np.broadcast_to(self._values, sizes))

    def contiguous(self) -> Any:
        return self._like(np.ascontiguousarray(self._values))

    def transpose(self, dim0: int, dim1: int) -> Any:
        return self._like(np.swapaxes(self._values, dim0, dim1))

    def masked_fill(self, mask: Any, value: float) -> Any:
        return self._like(np.where(mask._values, self._values.dtype.type(value), self._values))

    def new_zeros(self, size: tuple[int, ...]) -> Any:
        return self._like(np.zeros(size, self._values.dtype))

    def copy_(self, src: Any) -> Any:
        self._values[...] = src._values
        return self

    def fill_(self, value: float) -> Any:
        self._values[...] = value
        return self
