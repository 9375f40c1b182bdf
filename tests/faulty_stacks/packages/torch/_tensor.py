"""Tensors over NumPy that know on which device they are said to lie, and take memory there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arithmetic import Arithmetic
from ._plan import PLAN, reach

DTYPES = {"float32": np.float32, "float16": np.float16, "int64": np.int64}
allocated: dict[str, int] = {}
_calls: dict[str, int] = {}
_last: dict[tuple[str, Any], Any] = {}


class dtype:  # noqa: N801 (torch's own name)
    """One of the element types."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.itemsize = np.dtype(DTYPES[name]).itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class device:  # noqa: N801 (torch's own name)
    """A device's type and index."""

    def __init__(self, type: str, index: int | None = None) -> None:
        name, _, number = type.partition(":")
        self.type = name
        self.index = int(number) if number else index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index})"


class Tensor(Arithmetic):
    """Values, and the device where they are said to lie."""

    def __init__(self, values: Any, where: device) -> None:
        self._values = values
        self._where = where
        self._taken = 0
        if where.type != "cpu":
            share: float = PLAN.get("place", {}).get("allocator", 1.0)
            self._taken = int(values.nbytes * share)
            allocated[str(where)] = allocated.get(str(where), 0) + self._taken

    def __del__(self) -> None:
        if getattr(self, "_taken", 0):
            allocated[str(self._where)] -= self._taken

    @property
    def device(self) -> device:
        lie = PLAN.get("place", {}).get("device")
        return device(lie) if lie and self._where.type != "cpu" else self._where

    def numel(self) -> int:
        return int(self._values.size)

    def element_size(self) -> int:
        return int(self._values.itemsize)

    def to(self, where: Any) -> Tensor:
        if isinstance(where, dtype):
            return Tensor(self._values.astype(DTYPES[where.name]), self._where)
        where = where if isinstance(where, device) else device(str(where))
        if where.type == "cpu":
            return Tensor(self._values.copy(), where)
        reach("to")
        if PLAN.get("place", {}).get("stays"):
            return self
        return Tensor(self._values.copy(), where)

    def cpu(self) -> Tensor:
        reach("cpu")
        return Tensor(self._values.copy(), device("cpu"))

    def tolist(self) -> Any:
        return self._values.tolist()

    def repeat(self, *times: int) -> Tensor:
        return Tensor(np.tile(self._values, times), self._where)

    def add(self, other: float) -> Tensor:
        return Tensor(self._values + other, self._where)

    def float(self) -> Tensor:
        return Tensor(self._values.astype(np.float32), self._where)

    def __matmul__(self, other: Tensor) -> Tensor:
        return result("matmul", np.matmul(self._values, other._values), self)


def result(op: str, values: Any, like: Tensor) -> Tensor:
    """An operation's result on its inputs' device, spoilt as planned."""
    if like._where.type != "cpu":
        reach(op)
        values = spoilt(op, values)
        if PLAN.get("place", {}).get("computes_on_cpu") == op:
            return Tensor(values, device("cpu"))
    return Tensor(values, like._where)


def spoilt(op: str, values: Any) -> Any:
    """The values as this device would compute them."""
    key, call = (op, (values.shape, values.dtype.str)), _calls.get(op, 0)
    _calls[op] = call + 1
    right, last = values, _last.get(key)
    _last[key] = right
    how, argument, only = PLAN.get("spoil", {}).get(op, PLAN.get("spoil", {}).get("all", (None, None, None)))
    if how is None or (only and values.dtype != DTYPES[only]):
        return values
    if how == "scale":
        return (values * values.dtype.type(argument)).astype(values.dtype)
    if how == "fill":
        return np.full_like(values, float(argument))
    if how == "one_nan":
        values = values.copy()
        values.flat[argument] = np.nan
        return values
    if how == "one_off":
        values = values.copy()
        values.flat[argument] += 1
        return values
    if how == "stale":
        return values if last is None else last
    if how == "once":
        return values if call == 0 else values * 0
    if how == "noise":
        return values + np.random.default_rng().normal(0, argument, values.shape).astype(values.dtype)
    if how == "turned":
        return np.ascontiguousarray(values[..., ::-1])
    return values[:-1]  # "cut": another shape
