"""Kernels that are wrong only for wide or large results, for one row, or from the second call on."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest

from backend.common.types import Device
from tests.faulty_stacks.cases.numbers import ENGINES, FLOAT32_ONLY, spoilt
from tests.faulty_stacks.cases.providers import ONNX, onnx
from tests.faulty_stacks.probed import probed
from tests.faulty_stacks.stacks.ggml import listed
from tests.ggml_cpu import Fault, FaultyGgml

WIDE, ONE_ROW, LATE = {"columns": 600}, {"is_one_row": 1}, {"after": 1}
BEYOND_HALF = 65504.0


@pytest.mark.parametrize(
    ("operation", "dtype", "when", "words"),
    [
        ("matmul", "float32", WIDE, "MatMul 5×33×4099, each row float32 was off"),
        ("matmul", "bfloat16", WIDE, "MatMul 5×33×4099, each row bfloat16 was off"),
        ("linear", "float32", ONE_ROW, "Linear 1×4096×8 float32 was off"),
        ("linear", "bfloat16", ONE_ROW, "Linear 1×4096×8 bfloat16 was off"),
        ("index_select", "float32", LATE, "Gather float32 was off"),
        ("layer_norm", "bfloat16", {"after": 3}, "LayerNorm bfloat16 was off"),
    ],
)
def test_a_kernel_for_wide_results_one_row_or_later_calls_is_proved(
    tmp_path: Path, operation: str, dtype: str, when: dict[str, int], words: str
) -> None:
    _judge(tmp_path, spoilt(operation, "scale", 0.5, dtype, when), dtype, words)


@pytest.mark.parametrize("operation", ["matmul", "sum"])
def test_float32_with_the_range_of_float16_is_proved(tmp_path: Path, operation: str) -> None:
    words = {"matmul": "MatMul 5×33×4099, each row float32 was off", "sum": "Sum of 4096 float32 was off"}
    _judge(tmp_path, spoilt(operation, "clip", BEYOND_HALF, "float32"), "float32", words[operation])


def _judge(folder: Path, plan: dict[str, Any], dtype: str, words: str) -> None:
    _, devices = asyncio.run(probed(folder, plan, ENGINES))
    device = devices["cuda:0"]
    if dtype == "float32":
        assert device.state == "broken" and words in str(device.reason), device
    else:
        assert device.state == "ready" and words in str(device.note), device
        assert sorted(device.engines) == FLOAT32_ONLY


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ({"only": "×4099", "dtype": "float32"}, "Wrong result: MatMul 5×33×4099 float32"),
        ({"only": "/y", "dtype": "float32", "how": "clip", "argument": BEYOND_HALF}, "Wrong result: MatMul 5×33×4099"),
        ({"only": "MatMul ", "dtype": "float16"}, "float16 results are wrong on this device (MatMul 5×33×4099 float16"),
        ({"only": "MatMulNBits"}, "int4 results are wrong on this device (MatMulNBits 1×64×4160 of float32 int4"),
    ],
)
def test_onnx_runtime_s_wide_products_are_proved(tmp_path: Path, spoil: dict[str, Any], words: str) -> None:
    plan = onnx("CUDAExecutionProvider", spoil={"how": "scale columns", "argument": 0.5, **spoil})
    _, devices = asyncio.run(probed(tmp_path, plan, ONNX))
    assert words in _reasons(devices["onnx-cuda:0"])


def _halved(numbers: array[float]) -> array[float]:
    return array("f", (number / 2 for number in numbers)) if len(numbers) in (4099, 5 * 4099) else numbers


def _clipped(numbers: array[float]) -> array[float]:
    return array("f", (min(BEYOND_HALF, max(-BEYOND_HALF, number)) for number in numbers))


@pytest.mark.parametrize(
    ("operation", "dtype", "columns", "fault", "words"),
    [
        ("ggml_mul_mat", "float32", 1, _halved, "MatMul 4099×256×1 float32"),
        ("ggml_mul_mat", "float32", 5, _halved, "MatMul 4099×256×5 float32"),
        ("ggml_sum_rows", "", 0, _clipped, "Sum of 4096 float32"),
        ("ggml_mul_mat", "float16", 5, _halved, "MatMul 4099×256×5 float16"),
        ("ggml_mul_mat", "Q4_K", 1, _halved, "MatMul 4099×256×1 Q4_K"),
        ("ggml_mul_mat", "Q8_0", 5, _halved, "MatMul 4099×256×5 Q8_0"),
    ],
)
def test_llama_cpp_s_wide_products_are_proved(
    operation: str, dtype: str, columns: int, fault: Fault, words: str
) -> None:
    assert words in _reasons(listed(FaultyGgml([(operation, dtype, columns, fault)])))


def _reasons(device: Device) -> str:
    """Return the device's reason and those of its unusable data types."""
    unusable = (device.proof and device.proof.unusable) or {}
    return "\n".join([str(device.reason), *unusable.values()])
