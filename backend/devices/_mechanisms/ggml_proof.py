"""The proof of a device by llama.cpp's own operations, with its buffers as evidence of data placement."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from backend.common.device_api import Backend, DetectedDevice, UnusableDataType, WrongResult
from backend.common.types import Proof
from backend.devices._mechanisms.ggml import declare, open_device, versions
from backend.devices._mechanisms.ggml_blocks import FORMATS
from backend.devices._mechanisms.ggml_graph import Graph, UnsupportedOperation
from backend.devices._mechanisms.ggml_operations import (
    WIDE_COLUMNS,
    Operation,
    attention_operations,
    basic_operations,
    large_product,
    medium_product,
    one_column_product,
    real_product,
    timed_product,
    wide_product,
)
from backend.devices._mechanisms.proof_record import OnStep, ProofRecorder
from backend.devices._mechanisms.reference_math import Difference

_SIDES = ((128, 0.0), (512, 20.0))  # of timed products, each with the GFLOP/s that the smaller ones must reach
# A driver that has not compiled the kernels before takes up to 8 s for each large product (NVIDIA H200, driver with
# NV_coopmat2), and keeps the result: the next proof checks the rest.
_COMPILING_S = 4.0
_NOT_YET = "not checked after {seconds:.0f} s of compiling kernels, which the driver keeps: refresh the device"


def prove(backend: Backend, detected: DetectedDevice, on_step: OnStep) -> Proof:
    """Compute on the device and compare.

    Raises WrongResult if numbers are wrong, DeviceAbsent, OSError if the device cannot be opened.
    """
    opened = open_device(backend, detected)
    checks = ProofRecorder(on_step)
    ggml_backend = opened.base.ggml_backend_dev_init(opened.handle, None)
    if not ggml_backend:
        raise OSError(f"llama.cpp could not open {detected.name} ({opened.name})")
    prover = Prover(opened.base, ggml_backend, checks)
    checks.begin("float32")
    differences = prover.check(real_product())
    if prover.is_in_host_memory:
        raise WrongResult(f"tensors for {detected.name} were in the buffer {prover.buffer!r}, which is host memory")
    gflops = prover.check_all()
    evidence = f"all tensors were in the buffer {prover.buffer!r}, which is not host memory"
    operation = "MatMul 32×64×24, with the operations of text models, and products with weights in each format"
    return checks.proof(operation, differences, versions(detected.library), evidence, gflops)


def check_processor(library: Any) -> None:
    """Check the products of ggml's CPU backend in each weight format. `library` has ggml's functions.

    Does nothing if the library does not export ggml's functions. Raises UnusableDataType for the first wrong format.
    """
    try:
        base = declare(library)
        base.ggml_backend_cpu_init.restype = ctypes.c_void_p
    except (OSError, AttributeError):
        return
    prover = Prover(base, base.ggml_backend_cpu_init(), ProofRecorder())
    for form in FORMATS:
        wide = [wide_product(form, columns) for columns in WIDE_COLUMNS]
        for operation in (medium_product(form), *wide):
            try:
                prover.check(operation)
            except WrongResult as error:
                raise UnusableDataType(form.dtype, f"{form.dtype} results are wrong on the CPU ({error})") from error


class Prover:
    """Checks operations on one device of ggml."""

    def __init__(self, base: Any, backend: int, checks: ProofRecorder) -> None:
        self._base, self._backend = base, backend
        self._checks = checks
        self._started = time.perf_counter()
        self.buffer = ""
        self.is_in_host_memory = False

    def check_all(self) -> float:
        """Check the operations of each data type. Returns the best GFLOP/s. Raises WrongResult for float32."""
        self._check_type("float32", basic_operations())
        gflops = self._measure_gflops()
        self._checks.begin("float16")
        self._check_type("float16", attention_operations())
        for form in FORMATS:
            self._checks.begin(form.dtype)
            self._check_type(form.dtype, [one_column_product(form), wide_product(form, 1)])
        for new_product in (large_product, partial(wide_product, columns=WIDE_COLUMNS[-1])):
            for form in FORMATS:
                self._check_unless_late(new_product(form))
        return gflops

    def _check_unless_late(self, operation: Operation) -> None:
        """Check a product, or list it as skipped if the driver has compiled for too long."""
        seconds = time.perf_counter() - self._started
        if seconds > _COMPILING_S:
            self._checks.skip(operation.name, operation.dtype, _NOT_YET.format(seconds=seconds))
            return
        self._checks.begin(operation.dtype)
        self._check_type(operation.dtype, [operation])

    def check(self, operation: Operation) -> list[Difference]:
        """Run several samples in one graph, then the first again, to detect stale results. Raises WrongResult."""
        differences = []
        with Graph(self._base, self._backend, operation.inputs, operation.build) as graph:
            self.buffer, self.is_in_host_memory = graph.buffer_name, graph.is_in_host_memory
            samples = [operation.new_sample() for _ in range(operation.samples)]
            for sample in (*samples, samples[0]):
                values, reference = sample.expect(graph.compute(sample.data))
                differences.append(self._checks.compare(operation.name, operation.dtype, values, reference))
        return differences

    def _check_type(self, dtype: str, operations: Iterable[Operation]) -> None:
        for operation in operations:
            with self._checks.operation(
                operation.name, dtype, operation.required, lambda error: isinstance(error, UnsupportedOperation)
            ):
                self.check(operation)

    def _measure_gflops(self) -> float:
        """Return the best GFLOP/s of a square product, larger if the device is fast."""
        best = 0.0
        for side, above in _SIDES:
            if best >= above:
                best = max(best, self._time_product(side))
        return best

    def _time_product(self, side: int) -> float:
        operation = timed_product(side)
        with Graph(self._base, self._backend, operation.inputs, operation.build) as graph:
            sample = operation.new_sample()
            got = graph.compute(sample.data)  # the first run includes compilation
            gflops = 2e-9 * side**3 / min(graph.run() for _ in range(3))
        values, reference = sample.expect(got)
        self._checks.compare(operation.name, "float32", values, reference, gflops)
        return gflops
