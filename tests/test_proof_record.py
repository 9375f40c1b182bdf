"""The record of a proof: a fault in one data type takes away that type, a fault in float32 the device."""

from __future__ import annotations

from typing import Any

import pytest

from backend.common.device_api import WrongResult
from backend.devices._mechanisms.proof_record import ProofRecorder, is_unsupported
from backend.devices._mechanisms.reference_math import Difference, Reference

RIGHT = Reference([1.0, 2.0], [0.0, 0.0])


def record() -> tuple[ProofRecorder, list[str]]:
    steps: list[str] = []
    return ProofRecorder(steps.append), steps


def finish(checks: ProofRecorder) -> Any:
    return checks.proof("MatMul", [Difference(0.0, 1.0)], {}, "", 1.0, "bfloat16")


def test_a_wrong_data_type_is_unusable_and_the_next_one_is_checked() -> None:
    checks, steps = record()
    for dtype, got in (("float16", [1.0, 2.5]), ("bfloat16", [1.0, 2.0]), ("int8", [float("nan"), 2.0])):
        checks.begin(dtype)
        with checks.operation("MatMul", dtype):
            checks.compare("MatMul", dtype, got, RIGHT)
    proof = finish(checks)
    assert steps == ["float16", "bfloat16", "int8"] and proof.model_dtype == "bfloat16"
    assert set(proof.unusable) == {"float16", "int8"} and checks.is_usable("bfloat16") and not checks.is_usable("int8")
    assert proof.unusable["float16"].startswith("float16 results are wrong on this device (MatMul float16 was off by")
    assert "NaN" in proof.unusable["int8"] and not proof.unusable["int8"].endswith(".")
    assert [list(row)[2] for row in proof.checks] == ["failed", "max_abs_error", "failed"]


def test_float32_must_be_right() -> None:
    checks, _ = record()
    with pytest.raises(WrongResult), checks.operation("MatMul", "float32"):
        checks.compare("MatMul", "float32", [1.0, 2.5], RIGHT)
    with pytest.raises(RuntimeError), checks.operation("MatMul", "float32"):
        raise RuntimeError("\"addmm\" not implemented for 'Float'")
    with checks.operation("Conv2d", "float32", required=False):
        raise NotImplementedError("aten::conv2d")
    assert finish(checks).checks[-1] == {"operation": "Conv2d", "dtype": "float32", "skipped": "aten::conv2d"}


def test_a_data_type_that_the_library_lacks_is_unusable_with_its_words() -> None:
    checks, _ = record()
    with checks.operation("MatMul", "float16"):
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nsecond line")
    with checks.operation("Softmax", "bfloat16", required=False):
        raise NotImplementedError("softmax")
    with checks.operation("MatMul", "bfloat16"):
        raise WrongResult("MatMul bfloat16 was asked of cuda, but its result is on cpu: it ran elsewhere")
    proof = finish(checks)
    assert proof.unusable["float16"] == (
        "float16 is not supported on this device (MatMul: \"addmm_impl_cpu_\" not implemented for 'Half')"
    )
    assert "it ran elsewhere" in proof.unusable["bfloat16"] and len(proof.checks) == 3


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"), True),
        (NotImplementedError("The operator 'aten::x' is not currently implemented for the XPU device."), True),
        (AttributeError("module 'torch' has no attribute 'bfloat16'"), True),
        (TypeError("data type 'BFloat16' not supported"), True),
        (RuntimeError("The device doesn't support querying the available free memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: GPU has fallen off the bus. This is not supported"), False),
        (RuntimeError("CUDA error: unknown error"), False),
        (MemoryError(""), False),
    ],
)
def test_what_counts_as_unsupported(error: Exception, lacks: bool) -> None:
    assert is_unsupported(error) == lacks
    if not lacks:
        checks, _ = record()
        with pytest.raises(type(error)), checks.operation("MatMul", "bfloat16"):
            raise error
