"""The proof on a device that torch reaches: six operations, fresh inputs, repeated; and evidence of where data lay."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from backend.common.types import Proof
from backend.devices import WrongResult
from backend.devices._mechanisms.proof_record import ProofRecorder
from backend.devices._mechanisms.reference_math import (
    COARSE,
    PRECISE,
    RIGHT_OUTLIER,
    Difference,
    Matrix,
    Reference,
    convolution,
    flat,
    fresh,
    product,
    real_matrix,
    row_sums,
    rows_picked,
    softmax,
    whole_matrix,
)
from backend.devices._mechanisms.torch import TorchAccess, seconds_of

_TILE = 64
_SIDES = (
    (64, 0.0),
    (256, 0.5),
    (1024, 20.0),
    (2048, 500.0),
)  # of timed products, and the GFLOP/s that make one worth it
_TIMED_S = 0.05
_UNSUPPORTED = re.compile(r"not implemented|not supported|unsupported|does not support", re.IGNORECASE)
_SLACK_BYTES = 64 * 1024 * 1024  # allocators round up, and libraries keep room to work in


def prove_ground(ground: TorchAccess, versions: dict[str, str]) -> Proof:
    """Raises WrongResult where numbers or places are wrong, and whatever torch raises."""
    checks = ProofRecorder()
    first = _Product(ground)
    before = first.check(checks)
    for _ in range(2):  # other numbers through the same shapes: what is stale or right but once shows
        _Product(ground).check(checks)
        try:
            _half_product(ground, checks)
        except (RuntimeError, TypeError) as error:
            if not _UNSUPPORTED.search(str(error)):
                raise
            checks.skip("MatMul", "float16", str(error))
    _operations(ground, checks)
    after = first.check(checks)
    evidence, gflops = _weigh(ground, checks)
    operation = "MatMul 32×64×24, with convolution, sums, softmax and gather"
    return checks.proof(operation, (before, after), versions, evidence, gflops)


class _Product:
    """A product of reals with outliers, which can be asked for again."""

    def __init__(self, ground: TorchAccess) -> None:
        source = fresh()
        left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
        self._ground = ground
        self._reference = product(left, right, PRECISE)
        self._left, self._right = _put(ground, left, "float32"), _put(ground, right, "float32")

    def check(self, checks: ProofRecorder) -> Difference:
        return _checked(
            checks, "MatMul", "float32", self._ground, _multiply(self._ground, self._left, self._right), self._reference
        )


def _half_product(ground: TorchAccess, checks: ProofRecorder) -> None:
    source = fresh()
    left, right = whole_matrix(source, 32, 48, 3, outliers=3), whole_matrix(source, 48, 24, 3)
    reference = product(left, right, 0.0)  # sums of magnitudes stay below 2,048, so float16 holds each exactly
    got = _multiply(ground, _put(ground, left, "float16"), _put(ground, right, "float16"))
    _checked(checks, "MatMul", "float16", ground, got, reference)


def _operations(ground: TorchAccess, checks: ProofRecorder) -> None:
    """A torch that lacks one of these functions altogether is not wrong: the proof says which were not computed."""
    torch, source = ground.torch, fresh()
    image = [whole_matrix(source, 10, 10, 4, outliers=1) for _ in range(3)]
    filters = [[whole_matrix(source, 3, 3, 4) for _ in range(3)] for _ in range(4)]
    table = real_matrix(source, 24, 65, outliers=4)
    order = [source.randrange(24) for _ in range(40)]
    steep = [[value * 9 for value in row] for row in whole_matrix(source, 16, 33, 10)]
    functional = getattr(getattr(torch, "nn", None), "functional", None)
    floats, whole = partial(_put, ground, dtype="float32"), partial(_put, ground, dtype="int64")
    work: list[tuple[str, Any, Callable[[Any], Any], Reference]] = [
        (
            "Conv2d",
            getattr(functional, "conv2d", None),
            lambda conv2d: conv2d(floats([image]), floats(filters)),
            convolution(image, filters, COARSE),
        ),
        ("Sum", getattr(torch, "sum", None), lambda add: add(floats(table), 1), row_sums(table)),
        ("Softmax", getattr(torch, "softmax", None), lambda softmax: softmax(floats(steep), 1), softmax(steep)),
        (
            "Gather",
            getattr(torch, "index_select", None),
            lambda select: select(floats(table), 0, whole(order)),
            rows_picked(table, order),
        ),
    ]
    for name, function, compute, reference in work:
        if function is None:
            checks.skip(name, "float32", "this torch does not have it")
        else:
            _checked(checks, name, "float32", ground, compute(function), reference)


def _weigh(ground: TorchAccess, checks: ProofRecorder) -> tuple[str, float]:
    """Where data lies by the allocator's count, and how fast products are, in GFLOP/s; of each a row is checked."""
    best, evidence = 0.0, ""
    for side, above in _SIDES:
        if best >= above:
            evidence, gflops = _weighed(ground, side, checks)
            best = max(best, gflops)
    return f"results lay on {ground.type}; {evidence}", best


def _weighed(ground: TorchAccess, side: int, checks: ProofRecorder) -> tuple[str, float]:
    source, times = fresh(), side // _TILE
    left, right = whole_matrix(source, _TILE, _TILE, 3, outliers=2), whole_matrix(source, _TILE, _TILE, 3)
    before = _allocated(ground)
    a, b = (_tiled(ground, matrix, times) for matrix in (left, right))
    c = _multiply(ground, a, b)
    grown = _grown(ground, before, 3 * 4 * side * side)
    row = source.randrange(side)
    small = product([left[row % _TILE]], right, 0.0).values  # tiles of the small one, as often as there are tiles
    want = Reference([times * value for value in small] * times, [0.0] * side)
    _checked(checks, f"MatMul {side}×{side}", "float32", ground, c[row], want)
    says = (
        "there is no count of memory that could confirm it"
        if grown is None
        else f"the allocator's count of that device's memory grew by {grown} bytes for {3 * 4 * side * side}"
    )
    return says, _gflops(ground, a, b, side)


def _tiled(ground: TorchAccess, matrix: Matrix, times: int) -> Any:
    tile = _put(ground, matrix, "float32")
    return tile if times == 1 else tile.repeat(times, times)


def _allocated(ground: TorchAccess) -> int | None:
    ground.synchronize()
    return ground.allocated_bytes() if ground.allocated_bytes else None


def _grown(ground: TorchAccess, before: int | None, expected: int) -> int | None:
    after = _allocated(ground)
    if before is None or after is None:
        return None
    if not expected <= after - before <= expected + _SLACK_BYTES:
        raise WrongResult(
            f"tensors of {expected} bytes were put on the device, but the count of its memory in use went from "
            f"{before} to {after} bytes: they lie elsewhere"
        )
    return after - before


def _gflops(ground: TorchAccess, a: Any, b: Any, side: int) -> float:
    """The best of some rounds, each long enough that starting and waiting count for little."""
    runs, best, spent_s = 1, 0.0, 0.0
    while spent_s < _TIMED_S:
        seconds = seconds_of(partial(_repeat, ground, a, b, runs), ground.synchronize)
        best, spent_s = max(best, 2e-9 * side**3 * runs / max(seconds, 1e-9)), spent_s + seconds
        runs = min(1000, max(runs, int(runs * _TIMED_S / 4 / max(seconds, 1e-9))))
    return best


def _repeat(ground: TorchAccess, a: Any, b: Any, runs: int) -> None:
    for _ in range(runs):
        _multiply(ground, a, b)


def _multiply(ground: TorchAccess, a: Any, b: Any) -> Any:
    return ground.torch.matmul(a, b) if hasattr(ground.torch, "matmul") else a @ b


def _put(ground: TorchAccess, values: Any, dtype: str) -> Any:
    return ground.torch.tensor(values, dtype=getattr(ground.torch, dtype)).to(ground.device)


def _checked(
    checks: ProofRecorder, name: str, dtype: str, ground: TorchAccess, got: Any, reference: Reference
) -> Difference:
    lies = _type_of(got)
    if lies != ground.type:
        raise WrongResult(f"{name} {dtype} was asked of {ground.type}, but its result lies on {lies}: it ran elsewhere")
    return checks.compare(name, dtype, flat(got.cpu().tolist()), reference)


def _type_of(tensor: Any) -> str:
    device = tensor.device
    return str(getattr(device, "type", None) or str(device).partition(":")[0])
