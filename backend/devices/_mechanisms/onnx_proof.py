"""The proof on a device that ONNX Runtime reaches: six operations, repeated, each a model of one node on that device.

Sessions are made with fallback to the processor switched off, and the record says which provider got each node. What a
provider does not support is not wrong, as long as the matrix product runs there: the proof names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.common import error_patterns
from backend.common.types import Proof
from backend.devices import DeviceAbsent, WrongResult
from backend.devices._mechanisms.onnx import clean_trouble
from backend.devices._mechanisms.onnx_placement import OnnxPlace
from backend.devices._mechanisms.onnx_test_models import Value, one_node
from backend.devices._mechanisms.proof_record import ProofRecorder
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
_SIDES = ((64, 0.0), (256, 0.5), (1024, 20.0))  # of the products that are timed, and the GFLOP/s that make one worth it
_TIMED_S = 0.05
_REFUSED = "assigned to the default CPU EP"  # what ONNX Runtime says where it would have fallen back


@dataclass
class _Case:
    """One operation, its inputs by name (dtype, shape, numbers) and the right answer."""

    name: str
    dtype: str
    inputs: dict[str, tuple[str, list[int], Any]]
    shape: list[int]
    reference: Reference
    attributes: dict[str, list[int]]

    def model(self) -> bytes:
        values = [Value(name, dtype, shape) for name, (dtype, shape, _) in self.inputs.items()]
        return one_node(self.name, values, Value("y", self.dtype, self.shape), self.attributes)


def prove_place(place: OnnxPlace, versions: dict[str, str]) -> Proof:
    """Raises WrongResult where numbers or places are wrong, and whatever ONNX Runtime raises."""
    checks = ProofRecorder()
    nodes: dict[str, int] = {}
    share = COARSE if place.rounds_inputs else PRECISE
    try:
        differences = _run(place, [_real_product(share) for _ in range(3)], checks, nodes)
    except Exception as error:
        if _REFUSED in str(error):
            raise DeviceAbsent(
                f"{place.provider} is built in and takes no node here: its device or its driver is not there"
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
            checks.skip(cases[0].name, cases[0].dtype, clean_trouble(error))
    gflops = _rate(place, share if share == COARSE else 0.0, checks, nodes)
    total = sum(nodes.values())
    evidence = (
        f"ONNX Runtime's {' and '.join(sorted(nodes))}: {total} of {total} nodes on {place.provider}, "
        "with fallback to the processor switched off"
    )
    operation = "MatMul 32×64×24, with convolution, means, softmax and gather"
    return checks.proof(operation, differences, versions, evidence, gflops)


def _run(place: OnnxPlace, cases: list[_Case], checks: ProofRecorder, nodes: dict[str, int]) -> list[Difference]:
    """Runs cases of one shape through one session, then the first again: what is stale or right but once shows."""
    session = _session(place, cases[0].model())
    found = []
    for case in (*cases, cases[0]):
        got = session.run(None, _fed(case))[0]
        found.append(checks.compare(case.name, case.dtype, got.reshape(-1).tolist(), case.reference))
    _count(place, session, f"{cases[0].name} {cases[0].dtype}", nodes)
    return found


def _session(place: OnnxPlace, model: bytes) -> Any:
    return place.session(model, strict=True, provider_options=place.exact_options)


def _count(place: OnnxPlace, session: Any, what: str, nodes: dict[str, int]) -> None:
    ran, source = place.nodes_run(session)
    if set(ran) != {place.device}:
        others = ", ".join(sorted(set(ran) - {place.device})) or "nobody knows where"
        raise WrongResult(f"{what} was given to {place.provider}, but ran on {others}")
    nodes[source] = nodes.get(source, 0) + sum(ran.values())


def _rate(place: OnnxPlace, share: float, checks: ProofRecorder, nodes: dict[str, int]) -> float:
    """The best GFLOP/s of square products of growing size."""
    best = 0.0
    for side, above in _SIDES:
        if best >= above:
            best = max(best, _timed(place, side, share, checks, nodes))
    return best


def _timed(place: OnnxPlace, side: int, share: float, checks: ProofRecorder, nodes: dict[str, int]) -> float:
    """GFLOP/s of a product of whole numbers, made of tiles, a row of which is checked."""
    import numpy

    source, times = fresh(), side // _TILE
    left, right = whole_matrix(source, _TILE, _TILE, 3, outliers=2), whole_matrix(source, _TILE, _TILE, 3)
    square = {"a": ("float32", [side, side], None), "b": ("float32", [side, side], None)}
    session = _session(place, _Case("MatMul", "float32", square, [side, side], Reference([], []), {}).model())
    fed = {
        name: numpy.tile(numpy.array(matrix, numpy.float32), (times, times))
        for name, matrix in zip("ab", (left, right), strict=True)
    }
    row = source.randrange(side)
    small = product([left[row % _TILE]], right, share)
    want = Reference([times * value for value in small.values] * times, [times * off for off in small.allowed] * times)
    got = session.run(None, fed)[0][row].tolist()
    gflops = 2e-9 * side**3 / _seconds(lambda: session.run(None, fed))
    _count(place, session, f"MatMul {side}×{side}", nodes)
    checks.compare(f"MatMul {side}×{side}", "float32", got, want, gflops)
    return gflops


def _seconds(work: Callable[[], Any]) -> float:
    """Seconds of one run, the best of some, copies to the device and back among them."""
    best, spent = float("inf"), 0.0
    while spent < _TIMED_S:
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
    return best


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


def _fed(case: _Case) -> dict[str, Any]:
    import numpy

    return {name: numpy.array(values, dtype) for name, (dtype, _, values) in case.inputs.items()}
