"""The proof of a device through ONNX Runtime: the operations that models contain, by data type, on that device alone.

Sessions disable the fallback to the processor, and the record shows which provider ran each node. An operation that
the provider does not support is not a failure, as long as the float32 product runs there: the proof lists it as
skipped, or refuses the data type if engines need it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from backend.common import error_patterns
from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent, WrongResult
from backend.common.types import Proof
from backend.devices._mechanisms.onnx import clean_error_text, open_device, versions
from backend.devices._mechanisms.onnx_operations import (
    basic_operations,
    half_operations,
    real_product,
    share_of,
    timed_product,
)
from backend.devices._mechanisms.onnx_placement import OnnxPlace, remove_profiles
from backend.devices._mechanisms.onnx_quantized import int4_operations, int8_operations
from backend.devices._mechanisms.onnx_test_models import Operation, Sample, model_of
from backend.devices._mechanisms.proof_record import OnStep, ProofRecorder
from backend.devices._mechanisms.reference_math import Difference

_SIDES = ((256, 0.0), (1024, 20.0))  # of timed products, each with the GFLOP/s that the smaller ones must reach
_TIMED_S = 0.03
_HALF_TYPES = ("float16", "bfloat16")
Run = tuple[Sample, "array[float]"]  # what was computed, and the flat result
_FALLBACK_REFUSED = "assigned to the default CPU EP"  # ONNX Runtime's text where it would have fallen back


def prove(backend: Backend, detected: DetectedDevice, on_step: OnStep) -> Proof:
    """Compute on the device and compare.

    Raises WrongResult if numbers or placement are wrong, DeviceAbsent, and what ONNX Runtime raises.
    """
    try:
        return _prove(_Prover(open_device(backend, detected), ProofRecorder(on_step)), versions(detected.library))
    finally:
        remove_profiles()


def _prove(prover: _Prover, library_versions: dict[str, str]) -> Proof:
    """Check all data types and return the proof."""
    place, checks = prover.place, prover.checks
    rounds = place.rounds_inputs
    checks.begin("float32")
    differences = prover.check_real_product(real_product(share_of("float32", rounds)))
    prover.check_all("float32", basic_operations(rounds))
    gflops = prover.measure_gflops()
    for dtype, operations in (
        *((dtype, half_operations(dtype, rounds)) for dtype in _HALF_TYPES),
        ("int8", int8_operations()),
        ("int4", int4_operations(place.provider_facts.accuracy_level, rounds)),
    ):
        checks.begin(dtype)
        prover.check_all(dtype, operations)
    total = sum(prover.nodes.values())
    evidence = (
        f"ONNX Runtime's {' and '.join(sorted(prover.nodes))}: {total} of {total} nodes on {place.provider}, "
        "with fallback to the processor disabled"
    )
    operation = "MatMul 32×64×24, with the operations of models in each data type"
    return checks.proof(operation, differences, library_versions, evidence, gflops)


class _Unsupported(Exception):
    """The provider rejects the operation."""


class _Prover:
    """Checks operations on one device, and counts their nodes by the source of the count."""

    def __init__(self, place: OnnxPlace, checks: ProofRecorder) -> None:
        self.place = place
        self.checks = checks
        self.nodes: dict[str, int] = {}

    def check_real_product(self, operation: Operation) -> list[Difference]:
        """Check the product in float32, without which there is no device. Raises DeviceAbsent, WrongResult."""
        try:
            return self._compare(operation, self._run([operation])[operation.name])
        except Exception as error:
            if _FALLBACK_REFUSED in str(error):
                raise DeviceAbsent(
                    f"{self.place.provider} is built in but accepts no node: its device or its driver is missing"
                ) from error
            raise

    def check_all(self, dtype: str, groups: Iterable[Sequence[Operation]]) -> None:
        """Check the operations of a data type. Without the product, half precision is not supported at all."""
        for group in groups:
            runs = self._run_together(group)
            for operation in group:
                supported = False
                with self.checks.operation(operation.name, dtype, operation.required, _is_unsupported):
                    self._compare(operation, runs[operation.name] if runs else self._run_alone(operation))
                    supported = True
                if not supported and operation is group[0] and dtype in _HALF_TYPES:
                    return

    def measure_gflops(self) -> float:
        """Return the best GFLOP/s of square products of growing size."""
        best = 0.0
        for side, above in _SIDES:
            if best >= above:
                best = max(best, self._time_product(side))
        return best

    def _run_together(self, operations: Sequence[Operation]) -> dict[str, list[Run]] | None:
        """Run the operations in one session, because creating one takes up to 0.2 s on a card.

        Returns None if a provider rejects one of them or runs it elsewhere: then each is to be run alone.
        """
        try:
            return self._run(operations)
        except WrongResult:
            return None
        except Exception as error:
            if error_patterns.classify_error_text(str(error)):
                raise
            return None

    def _run_alone(self, operation: Operation) -> list[Run]:
        """Run an operation. Raises _Unsupported for errors of ONNX Runtime that name no fault of the device."""
        try:
            return self._run([operation])[operation.name]
        except WrongResult:
            raise
        except Exception as error:
            if error_patterns.classify_error_text(str(error)):
                raise
            raise _Unsupported(clean_error_text(error)) from error

    def _run(self, operations: Sequence[Operation]) -> dict[str, list[Run]]:
        """Run several samples in one session, then the first again, to detect stale results."""
        session = self._create_session(operations)
        samples = {each.name: [each.new_sample() for _ in range(each.samples)] for each in operations}
        runs: dict[str, list[Run]] = {each.name: [] for each in operations}
        for number in range(max(each.samples for each in operations) + 1):
            chosen = {name: of_one[number % len(of_one)] for name, of_one in samples.items()}
            arrays: dict[str, Any] = {}
            for each in operations:
                arrays.update(each.arrays(chosen[each.name]))
            results = session.run([each.result_name for each in operations], arrays)
            for each, result in zip(operations, results, strict=True):
                runs[each.name].append((chosen[each.name], each.flat(result)))
        self._count_nodes(session, f"{operations[0].name} {operations[0].dtype}")
        return runs

    def _compare(self, operation: Operation, runs: Iterable[Run]) -> list[Difference]:
        return [self.checks.compare(operation.name, operation.dtype, *sample.expect(result)) for sample, result in runs]

    def _time_product(self, side: int) -> float:
        """Return the GFLOP/s of a square product of integers, and check every row of it."""
        operation = timed_product(side, self.place.rounds_inputs)
        session, sample = self._create_session([operation]), operation.new_sample()
        arrays = operation.arrays(sample)
        got = operation.flat(session.run(None, arrays)[0])
        gflops = 2e-9 * side**3 / _seconds(lambda: session.run(None, arrays))
        self._count_nodes(session, f"MatMul {side}×{side}")
        values, reference = sample.expect(got)
        self.checks.compare(operation.name, "float32", values, reference, gflops)
        return gflops

    def _create_session(self, operations: Sequence[Operation]) -> Any:
        return self.place.session(model_of(operations), strict=True, provider_options=self.place.exact_options)

    def _count_nodes(self, session: Any, what: str) -> None:
        """Count the session's nodes. Raises WrongResult if one ran elsewhere."""
        ran, source = self.place.nodes_run(session)
        if set(ran) != {self.place.device}:
            others = ", ".join(sorted(set(ran) - {self.place.device})) or "an unknown device"
            raise WrongResult(f"{what} was given to {self.place.provider}, but ran on {others}")
        self.nodes[source] = self.nodes.get(source, 0) + sum(ran.values())


def _is_unsupported(error: Exception) -> bool:
    return isinstance(error, _Unsupported)


def _seconds(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of several runs, including copies to the device and back."""
    best_s, spent_s = float("inf"), 0.0
    while spent_s < _TIMED_S:
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        best_s, spent_s = min(best_s, seconds), spent_s + seconds
    return best_s
