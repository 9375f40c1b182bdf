"""The proof of a Vulkan device by llama.cpp's own operations, with its buffers as evidence of data placement."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from backend.common.device_api import Backend, DetectedDevice
from backend.common.types import Proof
from backend.devices._mechanisms.ggml import F16, F32, I32, Ggml, InitParams, open_device, versions
from backend.devices._mechanisms.proof_record import OnStep, ProofRecorder
from backend.devices._mechanisms.reference_math import (
    COARSE,
    RIGHT_OUTLIER,
    Difference,
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

Shape = Sequence[int]  # in ggml's order: the contiguous dimension first
_FORMATS = {F32: "f", F16: "e", I32: "i"}
_CONTEXT_BYTES = 4 * 1024 * 1024


def prove(backend: Backend, detected: DetectedDevice, on_step: OnStep) -> Proof:
    """Compute on the device and compare.

    Raises WrongResult if numbers are wrong, DeviceAbsent, OSError if the device cannot be opened.
    """
    ggml, handle = open_device(detected)
    checks = ProofRecorder(on_step)
    ggml_backend = ggml.base.ggml_backend_dev_init(handle, None)
    if not ggml_backend:
        raise OSError(f"llama.cpp's Vulkan could not open {detected.name}")
    runner = _GraphRunner(ggml, ggml_backend, checks)
    differences = [_product(runner, F32, case) for case in _repeat_first(_real_case)]
    for _ in range(2):
        _product(runner, F16, _whole_case())
    _operations(runner)
    gflops = _measure_gflops(runner)
    evidence = f"all tensors were in the buffer {runner.buffer!r}, which is not host memory"
    operation = "MatMul 32×64×24, with convolution, sums, softmax and gather"
    return checks.proof(operation, differences, versions(detected.library), evidence, gflops)


class _GraphRunner:
    """Runs graphs of one operation on the device."""

    def __init__(self, ggml: Ggml, backend: int, checks: ProofRecorder) -> None:
        self._base = ggml.base
        self._backend = backend
        self.checks = checks
        self.buffer = ""

    def run(
        self,
        inputs: Sequence[tuple[int, Shape, list[float]]],
        build: Callable[[Any, int, list[int]], int],
        timed: bool = False,
    ) -> tuple[list[float], float]:
        """Return the result's numbers and the seconds of the run; with `timed`, of the fastest of three more runs."""
        base = self._base
        context = base.ggml_init(InitParams(_CONTEXT_BYTES, None, True))
        tensors = [
            base.ggml_new_tensor_4d(context, kind, *shape, *(1,) * (4 - len(shape))) for kind, shape, _ in inputs
        ]
        result = build(base, context, tensors)
        graph = base.ggml_new_graph(context)
        base.ggml_build_forward_expand(graph, result)
        buffer = base.ggml_backend_alloc_ctx_tensors(context, self._backend)
        if not buffer:
            raise OSError("failed to allocate memory on the device")
        self.buffer = base.ggml_backend_buffer_name(buffer).decode("ascii", "replace")
        for tensor, (kind, _, values) in zip(tensors, inputs, strict=True):
            data = struct.pack(f"={len(values)}{_FORMATS[kind]}", *values)
            base.ggml_backend_tensor_set(tensor, data, 0, len(data))
        seconds = self._compute(graph)
        if timed:  # the first run includes compilation
            seconds = min(self._compute(graph) for _ in range(3))
        count = base.ggml_nelements(result)
        out = (ctypes.c_float * count)()
        base.ggml_backend_tensor_get(result, out, 0, 4 * count)
        base.ggml_backend_buffer_free(buffer)
        base.ggml_free(context)
        return list(out), seconds

    def _compute(self, graph: int) -> float:
        start = time.perf_counter()
        if status := self._base.ggml_backend_graph_compute(self._backend, graph):
            raise OSError(f"llama.cpp's Vulkan returned the status {status} for a computation")
        self._base.ggml_backend_synchronize(self._backend)
        return time.perf_counter() - start


def _repeat_first(make: Callable[[], Any]) -> list[Any]:
    """Return two cases and the first again, to detect stale results and results right only once."""
    first, second = make(), make()
    return [first, second, first]


def _real_case() -> tuple[Any, Any, Reference]:
    source = fresh()
    left, right = real_matrix(source, 32, 64, 6), real_matrix(source, 64, 24, 6, RIGHT_OUTLIER)
    return left, right, product(left, right, COARSE)  # ggml multiplies in float16 if the card supports it


def _whole_case() -> tuple[Any, Any, Reference]:
    source = fresh()
    left, right = whole_matrix(source, 32, 64, 3, outliers=3), whole_matrix(source, 64, 24, 3)
    return left, right, product(left, right, 0.0)


def _product(runner: _GraphRunner, kind: int, case: tuple[Any, Any, Reference]) -> Difference:
    left, right, reference = case
    transposed = [list(column) for column in zip(*right, strict=True)]
    inputs = [(kind, (len(right), len(transposed)), flat(transposed)), (F32, (len(right), len(left)), flat(left))]
    got, _ = runner.run(inputs, lambda base, context, tensors: base.ggml_mul_mat(context, *tensors))
    return runner.checks.compare("MatMul", "float16" if kind == F16 else "float32", got, reference)


def _operations(runner: _GraphRunner) -> None:
    source = fresh()
    table = real_matrix(source, 24, 64, 4)
    steep = [[value * 9 for value in row] for row in whole_matrix(source, 16, 32, 10)]
    order = [source.randrange(24) for _ in range(40)]
    image = [whole_matrix(source, 10, 10, 4, outliers=1) for _ in range(3)]
    filters = [[whole_matrix(source, 3, 3, 4) for _ in range(3)] for _ in range(4)]
    rows = [(F32, (64, 24), flat(table))]
    got, _ = runner.run(rows, lambda base, context, tensors: base.ggml_sum_rows(context, *tensors))
    runner.checks.compare("Sum", "float32", got, row_sums(table))
    got, _ = runner.run(
        [(F32, (32, 16), flat(steep))], lambda base, context, tensors: base.ggml_soft_max(context, *tensors)
    )
    runner.checks.compare("Softmax", "float32", got, softmax(steep))
    picked = [*rows, (I32, (40,), order)]
    got, _ = runner.run(picked, lambda base, context, tensors: base.ggml_get_rows(context, *tensors))  # type: ignore[arg-type]
    runner.checks.compare("Gather", "float32", got, rows_picked(table, order))
    pictures = [(F32, (3, 3, 3, 4), flat(filters)), (F32, (10, 10, 3), flat(image))]
    got, _ = runner.run(pictures, lambda base, context, tensors: base.ggml_conv_2d(context, *tensors, 1, 1, 0, 0, 1, 1))
    runner.checks.compare("Conv2d", "float32", got, convolution(image, filters, COARSE))


def _measure_gflops(runner: _GraphRunner) -> float:
    """Return the GFLOP/s of a product of integers, larger if the device is fast, and check one row of it."""
    best = 0.0
    for side, above in ((128, -1.0), (512, 20.0)):
        if best <= above:
            break
        source = fresh()
        left, right = whole_matrix(source, side, side, 2), whole_matrix(source, side, side, 2)
        transposed = [list(column) for column in zip(*right, strict=True)]
        inputs = [(F32, (side, side), flat(transposed)), (F32, (side, side), flat(left))]
        got, seconds = runner.run(
            inputs, lambda base, context, tensors: base.ggml_mul_mat(context, *tensors), timed=True
        )
        row = source.randrange(side)
        runner.checks.compare(
            f"MatMul {side}×{side}", "float32", got[row * side : (row + 1) * side], product([left[row]], right, 0.0)
        )
        best = max(best, 2e-9 * side**3 / seconds)
    return best
