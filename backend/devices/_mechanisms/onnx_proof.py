"""The proof of a device through ONNX Runtime: six operations, repeated, each a model of one node on that device.

Sessions disable the fallback to the processor, and the record shows which provider ran each node. An operation that
the provider does not support is not a failure, as long as the matrix product runs there: the proof lists it as skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.common import error_patterns
from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent, WrongResult
from backend.common.types import Proof
from backend.devices._mechanisms.onnx import clean_error_text, open_device, versions
from backend.devices._mechanisms.onnx_placement import OnnxPlace
from backend.devices._mechanisms.onnx_test_models import Value, one_node
from backend.devices._mechanisms.proof_record import OnStep, ProofRecorder
from backend.devices._mechanisms.reference_math import (
    COARSE,
    PRECISE,
    RIGHT_OUTLIER,
    Difference,
    Matrix,
    Reference,
    convolution,
    fresh,
    product,
    real_matrix,
    row_sums,
    rows_picked,
    softmax,
    whole_matrix,
)

_TILE = 64
_SIDES = (
    (64, 0.0),
    (256, 0.5),
    (1024, 20.0),
)  # of timed products, each with the GFLOP/s that the smaller ones must reach
_TIMED_S = 0.05
_FALLBACK_REFUSED = "assigned to the default CPU EP"  # ONNX Runtime's text where it would have fallen back


@dataclass
class _Case:
    """One operation, its inputs by name (dtype, shape, values) and the reference result."""

    name: str
    dtype: str
    inputs: dict[str, tuple[str, list[int], Any]]
    shape: list[int]
    reference: Reference
    attributes: dict[str, list[int]]

    def model(self) -> bytes:
        values = [Value(name, dtype, shape) for name, (dtype, shape, _) in self.inputs.items()]
        return one_node(self.name, values, Value("y", self.dtype, self.shape), self.attributes)


def prove(backend: Backend, detected: DetectedDevice, on_step: OnStep) -> Proof:
    """Compute on the device and compare.

    Raises WrongResult if numbers or placement are wrong, DeviceAbsent, and what ONNX Runtime raises.
    """
    place = open_device(backend, detected)
    checks = ProofRecorder(on_step)
    nodes: dict[str, int] = {}
    share = COARSE if place.rounds_inputs else PRECISE
    try:
        differences = _run(place, [_real_product(share) for _ in range(3)], checks, nodes)
    except Exception as error:
        if _FALLBACK_REFUSED in str(error):
            raise DeviceAbsent(
                f"{place.provider} is built in but accepts no node: its device or its driver is missing"
            ) from error
        raise
    for cases in ([_half_product() for _ in range(2)], [_conv()], [_mean()], [_softmax()], [_gather()]):
        try:
            _run(place, cases, checks, nodes)
        except WrongResult:
            raise
        except Exception as error:
            if error_patterns.classify_error_text(str(error)):
                raise
            checks.skip(cases[0].name, cases[0].dtype, clean_error_text(error))
    gflops = _measure_gflops(place, share if share == COARSE else 0.0, checks, nodes)
    total = sum(nodes.values())
    evidence = (
        f"ONNX Runtime's {' and '.join(sorted(nodes))}: {total} of {total} nodes on {place.provider}, "
        "with fallback to the processor disabled"
    )
    operation = "MatMul 32×64×24, with convolution, means, softmax and gather"
    return checks.proof(operation, differences, versions(detected.library), evidence, gflops)


def _run(place: OnnxPlace, cases: list[_Case], checks: ProofRecorder, nodes: dict[str, int]) -> list[Difference]:
    """Run cases of one shape in one session, then the first again, to detect stale results."""
    session = _create_session(place, cases[0].model())
    differences = []
    for case in (*cases, cases[0]):
        got = session.run(None, _arrays(case))[0]
        differences.append(checks.compare(case.name, case.dtype, got.reshape(-1).tolist(), case.reference))
    _count_nodes(place, session, f"{cases[0].name} {cases[0].dtype}", nodes)
    return differences


def _create_session(place: OnnxPlace, model: bytes) -> Any:
    return place.session(model, strict=True, provider_options=place.exact_options)


def _count_nodes(place: OnnxPlace, session: Any, what: str, nodes: dict[str, int]) -> None:
    """Add the session's nodes to `nodes`, by source. Raises WrongResult if one ran elsewhere."""
    ran, source = place.nodes_run(session)
    if set(ran) != {place.device}:
        others = ", ".join(sorted(set(ran) - {place.device})) or "an unknown device"
        raise WrongResult(f"{what} was given to {place.provider}, but ran on {others}")
    nodes[source] = nodes.get(source, 0) + sum(ran.values())


def _measure_gflops(place: OnnxPlace, share: float, checks: ProofRecorder, nodes: dict[str, int]) -> float:
    """Return the best GFLOP/s of square products of growing size."""
    best = 0.0
    for side, above in _SIDES:
        if best >= above:
            best = max(best, _time_product(place, side, share, checks, nodes))
    return best


def _time_product(place: OnnxPlace, side: int, share: float, checks: ProofRecorder, nodes: dict[str, int]) -> float:
    """Return the GFLOP/s of a tiled product of integers, and check one row of it."""
    import numpy

    source, times = fresh(), side // _TILE
    left, right = whole_matrix(source, _TILE, _TILE, 3, outliers=2), whole_matrix(source, _TILE, _TILE, 3)
    square = {"a": ("float32", [side, side], None), "b": ("float32", [side, side], None)}
    session = _create_session(place, _Case("MatMul", "float32", square, [side, side], Reference([], []), {}).model())
    arrays = {
        name: numpy.tile(numpy.array(matrix, numpy.float32), (times, times))
        for name, matrix in zip("ab", (left, right), strict=True)
    }
    row = source.randrange(side)
    small = product([left[row % _TILE]], right, share)
    want = Reference([times * value for value in small.values] * times, [times * off for off in small.allowed] * times)
    got = session.run(None, arrays)[0][row].tolist()
    gflops = 2e-9 * side**3 / _seconds(lambda: session.run(None, arrays))
    _count_nodes(place, session, f"MatMul {side}×{side}", nodes)
    checks.compare(f"MatMul {side}×{side}", "float32", got, want, gflops)
    return gflops


def _seconds(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of several runs, including copies to the device and back."""
    best_s, spent_s = float("inf"), 0.0
    while spent_s < _TIMED_S:
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        best_s, spent_s = min(best_s, seconds), spent_s + seconds
    return best_s


def _real_product(share: float) -> _Case:
    source = fresh()
    left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
    return _matmul("float32", left, right, product(left, right, share))


def _half_product() -> _Case:
    source = fresh()
    left, right = whole_matrix(source, 32, 48, 3, outliers=3), whole_matrix(source, 48, 24, 3)
    return _matmul("float16", left, right, product(left, right, 0.0))  # float16 holds each of these sums exactly


def _matmul(dtype: str, left: Matrix, right: Matrix, reference: Reference) -> _Case:
    rows, inner, columns = len(left), len(right), len(right[0])
    inputs = {"a": (dtype, [rows, inner], left), "b": (dtype, [inner, columns], right)}
    return _Case("MatMul", dtype, inputs, [rows, columns], reference, {})


def _conv() -> _Case:
    source = fresh()
    image = [whole_matrix(source, 10, 10, 4, outliers=1) for _ in range(3)]
    filters = [[whole_matrix(source, 3, 3, 4) for _ in range(3)] for _ in range(4)]
    inputs = {"a": ("float32", [1, 3, 10, 10], [image]), "b": ("float32", [4, 3, 3, 3], filters)}
    return _Case("Conv", "float32", inputs, [1, 4, 8, 8], convolution(image, filters, COARSE), {"kernel_shape": [3, 3]})


def _mean() -> _Case:
    table = real_matrix(fresh(), 24, 64, outliers=4)
    sums = row_sums(table)
    reference = Reference([value / 64 for value in sums.values], [5 * allowed / 64 for allowed in sums.allowed])
    return _Case("ReduceMean", "float32", {"a": ("float32", [24, 64], table)}, [24, 1], reference, {"axes": [1]})


def _softmax() -> _Case:
    steep = [[value * 9 for value in row] for row in whole_matrix(fresh(), 16, 33, 10)]
    return _Case("Softmax", "float32", {"a": ("float32", [16, 33], steep)}, [16, 33], softmax(steep), {})


def _gather() -> _Case:
    source = fresh()
    table, order = real_matrix(source, 24, 65, outliers=4), [source.randrange(24) for _ in range(40)]
    inputs = {"a": ("float32", [24, 65], table), "b": ("int64", [40], order)}
    return _Case("Gather", "float32", inputs, [40, 65], rows_picked(table, order), {})


def _arrays(case: _Case) -> dict[str, Any]:
    import numpy

    return {name: numpy.array(values, dtype) for name, (dtype, _, values) in case.inputs.items()}
