"""The proof of a device through torch: six operations with random inputs, repeated, and evidence of data placement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from backend.common.device_api import Backend, DetectedDevice, TorchAccess, WrongResult
from backend.common.types import Proof
from backend.devices._mechanisms.proof_record import OnStep, ProofRecorder
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
from backend.devices._mechanisms.torch import open_device, seconds_of, versions

_TILE = 64
# Sides of timed products, each with the GFLOP/s that the smaller ones must reach.
_SIDES = ((64, 0.0), (256, 0.5), (1024, 20.0), (2048, 500.0))
_TIMED_S = 0.05
_SLACK_BYTES = 64 * 1024 * 1024  # allocators round up, and libraries allocate workspace


def prove(backend: Backend, detected: DetectedDevice, on_step: OnStep) -> Proof:
    """Compute on the device and compare.

    Raises WrongResult if numbers or placement are wrong, DeviceAbsent, and what torch raises.
    """
    access = open_device(backend, detected)
    checks = ProofRecorder(on_step)
    first = _Product(access)
    before = first.check(checks)
    for _ in range(2):  # other numbers, same shapes: detects stale results and results right only once
        _Product(access).check(checks)
    _operations(access, checks)
    after = first.check(checks)
    evidence, gflops = _measure(access, checks)
    for dtype, largest in (("float16", 3), ("bfloat16", 1)):
        checks.begin(dtype)
        with checks.operation("MatMul", dtype):
            for _ in range(2):
                _half_product(access, checks, dtype, largest)
    operation = "MatMul 32×64×24, with convolution, sums, softmax and gather"
    return checks.proof(
        operation, (before, after), versions(detected.library), evidence, gflops, model_dtype=access.dtype
    )


class _Product:
    """A product of real matrices with outliers, which can be repeated."""

    def __init__(self, access: TorchAccess) -> None:
        source = fresh()
        left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
        self._access = access
        self._reference = product(left, right, PRECISE)
        self._left, self._right = _to_device(access, left, "float32"), _to_device(access, right, "float32")

    def check(self, checks: ProofRecorder) -> Difference:
        return _check(
            checks, "MatMul", "float32", self._access, _multiply(self._access, self._left, self._right), self._reference
        )


def _half_product(access: TorchAccess, checks: ProofRecorder, dtype: str, largest: int) -> None:
    source = fresh()
    left = whole_matrix(source, 32, 48, largest, outliers=3)
    right = whole_matrix(source, 48, 24, largest)
    reference = product(left, right, 0.0 if dtype == "float16" else 4e-3)  # float16 holds each sum exactly
    got = _multiply(access, _to_device(access, left, dtype), _to_device(access, right, dtype))
    _check(checks, "MatMul", dtype, access, got, reference)


def _operations(access: TorchAccess, checks: ProofRecorder) -> None:
    """Check the other operations. A function that this torch lacks is not a failure: the proof lists it as skipped."""
    torch, source = access.torch, fresh()
    image = [whole_matrix(source, 10, 10, 4, outliers=1) for _ in range(3)]
    filters = [[whole_matrix(source, 3, 3, 4) for _ in range(3)] for _ in range(4)]
    table = real_matrix(source, 24, 65, outliers=4)
    order = [source.randrange(24) for _ in range(40)]
    steep = [[value * 9 for value in row] for row in whole_matrix(source, 16, 33, 10)]
    functional = getattr(getattr(torch, "nn", None), "functional", None)
    floats, whole = partial(_to_device, access, dtype="float32"), partial(_to_device, access, dtype="int64")
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
            checks.skip(name, "float32", "this version of torch does not have it")
        else:
            _check(checks, name, "float32", access, compute(function), reference)


def _measure(access: TorchAccess, checks: ProofRecorder) -> tuple[str, float]:
    """Return evidence of data placement by the allocator's count, and the best GFLOP/s of checked products."""
    best, evidence = 0.0, ""
    for side, above in _SIDES:
        if best >= above:
            evidence, gflops = _measure_product(access, side, checks)
            best = max(best, gflops)
    return f"results were on {access.type}; {evidence}", best


def _measure_product(access: TorchAccess, side: int, checks: ProofRecorder) -> tuple[str, float]:
    source, times = fresh(), side // _TILE
    left, right = whole_matrix(source, _TILE, _TILE, 3, outliers=2), whole_matrix(source, _TILE, _TILE, 3)
    before = _allocated(access)
    a, b = (_tiled(access, matrix, times) for matrix in (left, right))
    c = _multiply(access, a, b)
    grown = _memory_growth(access, before, 3 * 4 * side * side)
    row = source.randrange(side)
    small = product([left[row % _TILE]], right, 0.0).values  # each row of tiles repeats the small product
    want = Reference([times * value for value in small] * times, [0.0] * side)
    _check(checks, f"MatMul {side}×{side}", "float32", access, c[row], want)
    counted = (
        "torch has no count of that device's memory to confirm it"
        if grown is None
        else f"the allocator's count of that device's memory grew by {grown} bytes for {3 * 4 * side * side}"
    )
    return counted, _gflops(access, a, b, side)


def _tiled(access: TorchAccess, matrix: Matrix, times: int) -> Any:
    tile = _to_device(access, matrix, "float32")
    return tile if times == 1 else tile.repeat(times, times)


def _allocated(access: TorchAccess) -> int | None:
    access.synchronize()
    return access.allocated_bytes() if access.allocated_bytes else None


def _memory_growth(access: TorchAccess, before: int | None, expected: int) -> int | None:
    after = _allocated(access)
    if before is None or after is None:
        return None
    if not expected <= after - before <= expected + _SLACK_BYTES:
        raise WrongResult(
            f"tensors of {expected} bytes were put on the device, but the count of its memory in use went from "
            f"{before} to {after} bytes: they are elsewhere"
        )
    return after - before


def _gflops(access: TorchAccess, a: Any, b: Any, side: int) -> float:
    """Return the best GFLOP/s of several rounds, each long enough to hide the latency of start and synchronization."""
    runs, best, spent_s = 1, 0.0, 0.0
    while spent_s < _TIMED_S:
        seconds = seconds_of(partial(_repeat, access, a, b, runs), access.synchronize)
        best, spent_s = max(best, 2e-9 * side**3 * runs / max(seconds, 1e-9)), spent_s + seconds
        runs = min(1000, max(runs, int(runs * _TIMED_S / 4 / max(seconds, 1e-9))))
    return best


def _repeat(access: TorchAccess, a: Any, b: Any, runs: int) -> None:
    for _ in range(runs):
        _multiply(access, a, b)


def _multiply(access: TorchAccess, a: Any, b: Any) -> Any:
    return access.torch.matmul(a, b) if hasattr(access.torch, "matmul") else a @ b


def _to_device(access: TorchAccess, values: Any, dtype: str) -> Any:
    return access.torch.tensor(values, dtype=getattr(access.torch, dtype)).to(access.device)


def _check(
    checks: ProofRecorder, name: str, dtype: str, access: TorchAccess, got: Any, reference: Reference
) -> Difference:
    actual = _type_of(got)
    if actual != access.type:
        raise WrongResult(f"{name} {dtype} was asked of {access.type}, but its result is on {actual}: it ran elsewhere")
    return checks.compare(name, dtype, flat(got.cpu().tolist()), reference)


def _type_of(tensor: Any) -> str:
    device = tensor.device
    return str(getattr(device, "type", None) or str(device).partition(":")[0])
