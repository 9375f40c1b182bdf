"""The proof of a device through torch: operations in each data type, repeated, and evidence of data placement."""

from __future__ import annotations

from array import array
from functools import partial
from itertools import chain
from typing import Any

from backend.common.device_api import Backend, DetectedDevice, TorchAccess, WrongResult
from backend.common.types import Proof
from backend.devices._mechanisms.proof_record import BASIC, OnStep, ProofRecorder
from backend.devices._mechanisms.reference_math import (
    COARSE,
    PRECISE,
    RIGHT_OUTLIER,
    ROUNDOFF,
    Difference,
    Matrix,
    Reference,
    flat,
    fresh,
    product,
    real_matrix,
    rounded,
    ternary_matrix,
    whole_matrix,
)
from backend.devices._mechanisms.tiled_product import BEYOND_HALF, WIDEST, Rows, TiledProduct
from backend.devices._mechanisms.torch import open_device, seconds_of, versions
from backend.devices._mechanisms.torch_operations import find, functional, multiply, operations, read, to_device

HALF_TYPES = ("float16", "bfloat16")
# Rows, inner size and columns of the products whose every row is checked. The first one is computed twice and fits no
# tile. The result of the largest in each data type exceeds 1 MB. The last one is as wide as the layers of models.
_LARGE = {BASIC: ((523, 259, 521), WIDEST), **dict.fromkeys(HALF_TYPES, ((331, 65, 257), (1031, 16, 520), WIDEST))}
_LONG = 4096
_TILE = 64
# Sides of timed products, each with the GFLOP/s that the smaller ones must reach.
_SIDES = ((64, 0.0), (256, 0.5), (1024, 20.0), (2048, 500.0))
_READ_COLUMNS = 512  # of timed products; of larger ones every second or fourth column, from a random one
_TIMED_S = 0.05
_SLACK_BYTES = 64 * 1024 * 1024  # allocators round up, and libraries allocate workspace


def prove(backend: Backend, detected: DetectedDevice, on_step: OnStep) -> Proof:
    """Compute on the device and compare.

    Raises WrongResult if numbers or placement are wrong in float32, DeviceAbsent, and what torch raises.
    """
    access = open_device(backend, detected)
    checks = ProofRecorder(on_step)
    first = _Product(access, BASIC)
    before = first.check(checks)
    for _ in range(2):  # other numbers, same shapes: detects stale results and results right only once
        _Product(access, BASIC).check(checks)
    _check_operations(access, checks, BASIC)
    _check_large(access, checks, BASIC)
    _check_operations(access, checks, BASIC, again=True)
    again = first.check(checks)
    evidence, gflops = _measure(access, checks)
    checks.recheck = partial(first.check, checks)
    for dtype in HALF_TYPES:
        checks.begin(dtype)
        _check_half(access, checks, dtype)
    checks.begin(BASIC)
    after = first.check(checks)  # still right after all other work
    operation = "MatMul 32×64×24, with larger products, reductions, attention, norms, softmax, convolution and gather"
    return checks.proof(
        operation, (before, again, after), versions(detected.library), evidence, gflops, model_dtype=access.dtype
    )


class _Product:
    """A product of real matrices with outliers, which can be repeated."""

    def __init__(self, access: TorchAccess, dtype: str) -> None:
        source = fresh()
        left = rounded(real_matrix(source, 32, 64, 6), dtype)
        right = rounded(real_matrix(source, 64, 24, 6, RIGHT_OUTLIER), dtype)
        self._access, self._dtype = access, dtype
        share = _float32_share(access) if dtype == BASIC else 8 * ROUNDOFF[dtype]
        self._reference = product(left, right, share)
        self._left, self._right = to_device(access, left, dtype), to_device(access, right, dtype)

    def check(self, checks: ProofRecorder) -> Difference:
        """Multiply and compare. Raises WrongResult."""
        got = multiply(self._access, self._left, self._right)
        return _check(checks, "MatMul", self._dtype, self._access, got, self._reference)


def _float32_share(access: TorchAccess) -> float:
    """Return the tolerance of float32 products: coarse if the user lets torch round their inputs to TF32."""
    get_precision = getattr(access.torch, "get_float32_matmul_precision", None)
    return PRECISE if get_precision is None or get_precision() == "highest" else COARSE


def _check_half(access: TorchAccess, checks: ProofRecorder, dtype: str) -> None:
    """Check a data type of 16 bits. A fault makes only the type unusable."""
    with checks.operation("MatMul", dtype):
        first = _Product(access, dtype)
        first.check(checks)
        for _ in range(2):
            _whole_product(access, checks, dtype)
        first.check(checks)
    # Engines compute in the device's preferred type, and in bfloat16 where float32 does not fit in memory.
    if checks.is_usable(dtype) and dtype in (access.dtype, "bfloat16"):
        _check_operations(access, checks, dtype)
        _check_large(access, checks, dtype)
        _check_operations(access, checks, dtype, again=True)
        with checks.operation("MatMul", dtype):
            _whole_product(access, checks, dtype)


def _whole_product(access: TorchAccess, checks: ProofRecorder, dtype: str) -> None:
    """Multiply integers with outliers: every sum of magnitudes is below 256, so that each data type holds it."""
    source = fresh()
    left, right = whole_matrix(source, 32, 48, 1), whole_matrix(source, 48, 24, 1)
    left[source.randrange(32)][source.randrange(48)] = source.choice((-128.0, 128.0))
    got = multiply(access, to_device(access, left, dtype), to_device(access, right, dtype))
    _check(checks, "MatMul", dtype, access, got, product(left, right, 0.0))


def _check_operations(access: TorchAccess, checks: ProofRecorder, dtype: str, again: bool = False) -> None:
    """Check the operations of models. A function that this torch lacks is not a failure: it is listed as skipped.

    `again`: the second time, with other numbers in the same shapes. It detects stale results and late faults.
    """
    for operation in operations(access, dtype):
        name = operation.name
        if operation.function is None:
            if not again:
                checks.skip(name, dtype, "this version of torch does not have it")
            continue
        required = operation.required and dtype != BASIC and not access.plain_only
        with checks.operation(name, dtype, required):
            _check(checks, name, dtype, access, operation.compute(), operation.reference)


def _check_large(access: TorchAccess, checks: ProofRecorder, dtype: str) -> None:
    """Check each row of large products, and sums of 4,096 products, with one row and with several.

    The latter also as a linear layer computes them: one row, as for each new token, has a separate kernel.
    """
    linear = find(functional(access), "linear")
    with checks.operation("MatMul", dtype):
        for number, (rows, inner, columns) in enumerate(_LARGE[dtype]):
            largest = BEYOND_HALF if dtype == BASIC and columns == WIDEST[-1] else 1
            factors = TiledProduct.whole(fresh(), (rows, inner, columns), (largest, largest))
            _check_rows(access, checks, dtype, factors, twice=number == 0)
        for rows in (1, 5):
            source = fresh()
            left, right = ternary_matrix(source, rows, _LONG, zeros=3), ternary_matrix(source, _LONG, 8)
            expected, put = product(left, right, 0.0), to_device(access, left, dtype)
            got = multiply(access, put, to_device(access, right, dtype))
            _check(checks, f"MatMul {rows}×{_LONG}×8", dtype, access, got, expected)
            if linear is not None:
                turned = [list(column) for column in zip(*right, strict=True)]
                got = linear(put, to_device(access, turned, dtype))
                _check(checks, f"Linear {rows}×{_LONG}×8", dtype, access, got, expected)


def _check_rows(access: TorchAccess, checks: ProofRecorder, dtype: str, factors: TiledProduct, twice: bool) -> None:
    """Multiply and check each row.

    `twice`: multiply again, as a linear layer does. Both results must be the same after a synchronization.
    """
    left, turned = _lists(factors.left), _lists(factors.right_transposed)
    name = f"MatMul {factors.rows}×{len(left[0])}×{factors.columns}, each row"
    a = to_device(access, left, dtype)
    b = to_device(access, [list(row) for row in zip(*turned, strict=True)], dtype)
    first = multiply(access, a, b)
    _require_place(checks, name, dtype, access, first)
    numbers = read(first)
    checks.compare(name, dtype, *factors.worst_of_rows(array("f", chain.from_iterable(numbers))))
    if not twice:
        return
    linear = find(functional(access), "linear")  # takes a transposed matrix
    second = multiply(access, a, b) if linear is None else linear(a, to_device(access, turned, dtype))
    access.synchronize()
    for what, tensor in (("the second result", second), ("the first result, read after a synchronization,", first)):
        if read(tensor) != numbers:
            raise checks.wrong(name, dtype, f"{name} {dtype}: {what} differs from the first")


def _lists(rows: Rows) -> Matrix:
    return [row.tolist() for row in rows]


def _measure(access: TorchAccess, checks: ProofRecorder) -> tuple[str, float]:
    """Return evidence of data placement by the allocator's count, and the best GFLOP/s of checked products."""
    best, evidence = 0.0, ""
    for side, above in _SIDES:
        if best >= above:
            evidence, gflops = _measure_product(access, side, checks)
            best = max(best, gflops)
    return f"results were on {access.type}; {evidence}", best


def _measure_product(access: TorchAccess, side: int, checks: ProofRecorder) -> tuple[str, float]:
    source, times, name = fresh(), side // _TILE, f"MatMul {side}×{side}"
    left, right = whole_matrix(source, _TILE, _TILE, 3, outliers=2), whole_matrix(source, _TILE, _TILE, 3)
    before = _allocated(access)
    a, b = (_tiled(access, matrix, times) for matrix in (left, right))
    c = multiply(access, a, b)
    grown = _memory_growth(access, before, 3 * 4 * side * side)
    _require_place(checks, name, BASIC, access, c)
    small = product(left, right, 0.0).values  # each tile of the result is a multiple of the small product
    tiles = [[times * value for value in small[start : start + _TILE]] * times for start in range(0, len(small), _TILE)]
    step = max(1, side // _READ_COLUMNS)
    columns = slice(source.randrange(step), None, step)
    _compare_tiles(checks, name, read(c[:, columns] if step > 1 else c), [row[columns] for row in tiles], side)
    counted = (
        "torch has no count of that device's memory to confirm it"
        if grown is None
        else f"the allocator's count of that device's memory grew by {grown} bytes for {3 * 4 * side * side}"
    )
    return counted, _gflops(access, a, b, side)


def _compare_tiles(checks: ProofRecorder, name: str, rows: Matrix, tiles: Matrix, count: int) -> None:
    """Compare each row of a product of tiled matrices. Raises WrongResult."""
    if len(rows) != count:
        raise checks.wrong(name, BASIC, f"{name} {BASIC} returned {len(rows)} rows instead of {count}")
    odd = next((at for at, row in enumerate(rows) if row != tiles[at % _TILE]), 0)
    want = tiles[odd % _TILE]
    checks.compare(f"{name}, each row", BASIC, rows[odd], Reference(want, [0.0] * len(want)))


def _tiled(access: TorchAccess, matrix: Matrix, times: int) -> Any:
    tile = to_device(access, matrix, "float32")
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
        multiply(access, a, b)


def _check(
    checks: ProofRecorder, name: str, dtype: str, access: TorchAccess, got: Any, reference: Reference
) -> Difference:
    _require_place(checks, name, dtype, access, got)
    return checks.compare(name, dtype, flat(read(got)), reference)


def _require_place(checks: ProofRecorder, name: str, dtype: str, access: TorchAccess, tensor: Any) -> None:
    actual = _type_of(tensor)
    if actual != access.type:
        raise checks.wrong(
            name,
            dtype,
            f"{name} {dtype} was asked of {access.type}, but its result is on {actual}: it ran elsewhere",
        )


def _type_of(tensor: Any) -> str:
    device = tensor.device
    return str(getattr(device, "type", None) or str(device).partition(":")[0])
