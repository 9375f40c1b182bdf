"""Tensors over NumPy that know on which device they are said to lie, and take memory there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arithmetic import Arithmetic
from ._plan import PLAN, reach

# NumPy has no bfloat16: its values are float32, rounded.
DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.float32,
    "int64": np.int64,
    "bool": np.bool_,
}
allocated: dict[str, int] = {}
_calls: dict[str, int] = {}
_last: dict[tuple[str, Any], Any] = {}
_settling: list[tuple[Tensor, float]] = []  # results that a synchronization changes


class dtype:  # noqa: N801 (torch's own name)
    """One of the element types."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.itemsize = _itemsize(name)

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

    def __init__(self, values: Any, where: device, kind: str | None = None) -> None:
        self._kind = kind if kind and values.dtype == DTYPES[kind] else values.dtype.name
        self._values = rounded(values) if self._kind == "bfloat16" else values
        self._where = where
        self._taken = 0
        if where.type != "cpu":
            share: float = PLAN.get("place", {}).get("allocator", 1.0)
            self._taken = int(self.numel() * self.element_size() * share)
            allocated[str(where)] = allocated.get(str(where), 0) + self._taken

    def __del__(self) -> None:
        if getattr(self, "_taken", 0):
            allocated[str(self._where)] -= self._taken

    @property
    def device(self) -> device:
        lie = PLAN.get("place", {}).get("device")
        return device(lie) if lie and self._where.type != "cpu" else self._where

    @property
    def data(self) -> Tensor:
        return self

    @data.setter
    def data(self, other: Tensor) -> None:
        self._values, self._kind = other._values, other._kind

    def is_floating_point(self) -> bool:
        return self._kind != "int64"

    def numel(self) -> int:
        return int(self._values.size)

    def element_size(self) -> int:
        return _itemsize(self._kind)

    def to(self, where: Any) -> Tensor:
        if isinstance(where, dtype):
            return Tensor(self._values.astype(DTYPES[where.name]), self._where, where.name)
        where = where if isinstance(where, device) else device(str(where))
        if where.type == "cpu":
            return Tensor(self._values.copy(), where, self._kind)
        reach("to")
        if PLAN.get("place", {}).get("stays"):
            return self
        return Tensor(self._values.copy(), where, self._kind)

    def cpu(self) -> Tensor:
        reach("cpu")
        return Tensor(self._values.copy(), device("cpu"), self._kind)

    def tolist(self) -> Any:
        return self._values.tolist()

    def repeat(self, *times: int) -> Tensor:
        return Tensor(np.tile(self._values, times), self._where, self._kind)

    def add(self, other: Any) -> Tensor:
        return Tensor(self._values + other, self._where, self._kind)

    def float(self) -> Tensor:
        return Tensor(self._values.astype(np.float32), self._where)

    def pow(self, exponent: Any) -> Tensor:
        return Tensor(self._values**exponent, self._where, self._kind)

    def mean(self, dim: int, keepdim: bool = False) -> Tensor:
        return result("mean", self._values.mean(axis=dim, keepdims=keepdim, dtype=np.float32), self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return result("matmul", product(self, other), self, self._values.shape[-1])


def product(left: Tensor, right: Tensor) -> Any:
    """The matrix product, summed in float32 as cards do it, or as the plan's arithmetic says."""
    a, b = left._values, right._values
    if left._kind == "int64":
        return np.matmul(a, b)
    a, b, how = a.astype(np.float32), b.astype(np.float32), PLAN.get("arithmetic")
    if how == "tf32" and left._where.type != "cpu" and left._kind == "float32":
        a, b = rounded(a, 13), rounded(b, 13)
    if how == "splits" and left._where.type != "cpu" and left._kind != "float32":
        step = -(-a.shape[-1] // 4)  # each part is rounded to the data type, as reductions of several blocks are
        pairs = [(a[..., i : i + step], b[..., i : i + step, :]) for i in range(0, a.shape[-1], step)]
        parts = [cast(np.matmul(*pair), left._kind) for pair in pairs]
        total = parts[0]
        for part in parts[1:]:
            total = cast(total + part, left._kind)
        return total
    return np.matmul(a, b)


def rounded(values: Any, bits: int = 16) -> Any:
    """float32 without its lowest bits, to the nearest; with 16 bits less it is bfloat16."""
    whole = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    short = (whole + (1 << (bits - 1)) - 1 + ((whole >> bits) & 1)) >> bits << bits
    return np.where(np.isfinite(values), short.astype(np.uint32).view(np.float32), values).astype(np.float32)


def cast(values: Any, kind: str) -> Any:
    """The values as an operation in this data type leaves them."""
    if kind == "bfloat16":
        return rounded(values)
    with np.errstate(over="ignore"):
        return values.astype(DTYPES[kind])


def _itemsize(kind: str) -> int:
    return 2 if kind == "bfloat16" else np.dtype(DTYPES.get(kind, kind)).itemsize


def result(op: str, values: Any, like: Tensor, inner: int = 0) -> Tensor:
    """An operation's result on its inputs' device, in their data type, spoilt as planned."""
    kind = like._kind
    values = cast(np.asarray(values), kind)
    if like._where.type == "cpu":
        return Tensor(values, like._where, kind)
    reach(op)
    reach(f"{op}:{kind}")
    if PLAN.get("arithmetic") == "flushes" and kind != "int64":
        smallest = float(np.finfo(DTYPES[kind]).tiny)
        values = np.where(np.abs(values) < smallest, 0, values).astype(values.dtype)
    values, settles = spoilt(op, values, kind, inner)
    if PLAN.get("place", {}).get("computes_on_cpu") == op:
        return Tensor(values, device("cpu"), kind)
    made = Tensor(values, like._where, kind)
    if settles:
        _settling.append((made, settles))
    return made


def settle() -> None:
    """What a synchronization changes."""
    for tensor, by in _settling:
        tensor._values = tensor._values + tensor._values.dtype.type(by)
    _settling.clear()


def spoilt(op: str, values: Any, kind: str, inner: int) -> tuple[Any, float]:
    """The values as this device would compute them, and what a synchronization adds to them."""
    key, call = (op, (values.shape, kind)), _calls.get(op, 0)
    _calls[op] = call + 1
    right, last = values, _last.get(key)
    _last[key] = right
    plan = PLAN.get("spoil", {}).get(op, PLAN.get("spoil", {}).get("all", (None, None, None)))
    how, argument, only, when = (*plan, {})[:4]
    facts = {
        "rows": values.shape[-2] if values.ndim > 1 else 0,
        "columns": values.shape[-1] if values.ndim else 0,
        "is_one_row": int(values.ndim > 1 and values.shape[-2] == 1),
        "bytes": values.size * _itemsize(kind),
        "inner": inner,
        "after": call,
    }
    if how is None or (only and kind != only) or any(facts[name] < least for name, least in when.items()):
        return values, 0.0
    if how == "settle":
        return values, argument
    return _wrong(how, argument, values, last, call), 0.0


def _wrong(how: str, argument: Any, values: Any, last: Any, call: int) -> Any:
    """The values after one kind of fault."""
    if how in ("stale", "once"):
        earlier = values if last is None else last
        return earlier if how == "stale" else values * (call == 0)
    if how == "noise":
        return values + np.random.default_rng().normal(0, argument, values.shape).astype(values.dtype)
    if how == "scale":
        return (values * values.dtype.type(argument)).astype(values.dtype)
    if how == "clip":
        return values.clip(-argument, argument)
    if how in ("turned", "cut"):  # another order, another shape
        return np.ascontiguousarray(values[..., ::-1]) if how == "turned" else values[:-1]
    changed = values.copy()
    if how == "fill":
        changed[...] = float(argument)
    elif how == "one_nan":
        changed.flat[argument] = np.nan
    elif how == "one_off":
        changed.flat[argument] += 1
    elif how == "last_row":  # never written
        changed[..., -1, :] = argument
    else:  # "last_tile": never written
        changed[..., -(values.shape[-2] % 64 or 64) :, -(values.shape[-1] % 64 or 64) :] = argument
    return changed
