"""The proof of a device through OpenVINO: the same operations as through ONNX Runtime, read from ONNX by OpenVINO.

ONNX Runtime's provider contains another copy of OpenVINO, and a process can hold only one. So this proof runs in
another process than that of the device. Only wrong numbers count: what a device does not support is skipped.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from backend.common.device_api import WrongResult
from backend.devices._mechanisms.onnx_operations import basic_operations, half_operations, real_product, share_of
from backend.devices._mechanisms.onnx_quantized import int8_operations
from backend.devices._mechanisms.onnx_test_models import Operation, model_of
from backend.devices._mechanisms.reference_math import compare

_ROUNDS_INPUTS = True  # processors with AMX and Intel's cards may compute in bfloat16 or float16
_EXACT = {"INFERENCE_PRECISION_HINT": "f32"}  # as in the proof through ONNX Runtime


def check_openvino(core: Any, name: str) -> dict[str, str]:
    """Compute on a device of `openvino.Core` and compare. Returns why data types are unusable.

    Raises WrongResult if numbers in float32 or the placement are wrong, and what OpenVINO raises if no product runs.
    """
    _check(core, name, real_product(share_of("float32", _ROUNDS_INPUTS)))
    unusable: dict[str, str] = {}
    for dtype, operations in _operations(name):
        for operation in operations:
            try:
                with contextlib.suppress(RuntimeError):  # OpenVINO's exceptions: it does not support the operation
                    _check(core, name, operation)
            except WrongResult as error:
                if dtype == "float32":
                    raise
                unusable.setdefault(dtype, f"{dtype} results are wrong on this device ({error})")
    return unusable


def _operations(name: str) -> Iterator[tuple[str, list[Operation]]]:
    """Yield the operations by data type. Left out are those of ONNX Runtime alone, which OpenVINO reads otherwise."""
    is_exact = _is_exact(name)
    groups = {
        "float32": basic_operations(_ROUNDS_INPUTS) if is_exact else (),
        "float16": half_operations("float16", _ROUNDS_INPUTS),
        "int8": int8_operations() if is_exact else (),  # sums of 8-bit products do not fit into float16
    }
    for dtype, group in groups.items():
        operations = [operation for each in group for operation in each]
        yield dtype, [each for each in operations if not any(node.domain for node in each.nodes)]


def _is_exact(name: str) -> bool:
    """Return whether a device can be set to compute in float32: an NPU cannot."""
    return not name.startswith("NPU")


def _check(core: Any, name: str, operation: Operation) -> None:
    """Run several samples, then the first again, to detect stale results. Raises WrongResult, and OpenVINO's errors."""
    model = core.read_model(io.BytesIO(model_of([operation])))
    compiled = core.compile_model(model, name, _EXACT if _is_exact(name) else {})
    where = list(compiled.get_property("EXECUTION_DEVICES"))
    if where and name not in where:
        raise WrongResult(f"{operation.name} was given to {name}, but ran on {', '.join(where)}")
    request = compiled.create_infer_request()
    samples = [operation.new_sample() for _ in range(operation.samples)]
    for sample in (*samples, samples[0]):
        results = request.infer(operation.arrays(sample))
        values, reference = sample.expect(operation.flat(results[compiled.output(operation.result_name)]))
        compare(f"{operation.name} {operation.dtype}", values, reference)
