"""Kernels that are wrong only for wide results, or for one row in a linear layer, as each new token needs it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faulty_stacks.cases.numbers import ENGINES, FLOAT32_ONLY, spoilt
from tests.faulty_stacks.probed import probed

WIDE, ONE_ROW = {"columns": 600}, {"is_one_row": 1}


@pytest.mark.parametrize(
    ("operation", "dtype", "when", "words"),
    [
        ("matmul", "float32", WIDE, "MatMul 5×33×4099, each row float32 was off"),
        ("matmul", "bfloat16", WIDE, "MatMul 5×33×4099, each row bfloat16 was off"),
        ("linear", "float32", ONE_ROW, "Linear 1×4096×8 float32 was off"),
        ("linear", "bfloat16", ONE_ROW, "Linear 1×4096×8 bfloat16 was off"),
    ],
)
def test_a_kernel_for_wide_results_or_one_row_is_proved(
    tmp_path: Path, operation: str, dtype: str, when: dict[str, int], words: str
) -> None:
    plan = spoilt(operation, "scale", 0.5, dtype, when)
    _, devices = asyncio.run(probed(tmp_path, plan, ENGINES))
    device = devices["cuda:0"]
    if dtype == "float32":
        assert device.state == "broken" and words in str(device.reason), device
    else:
        assert device.state == "ready" and words in str(device.note), device
        assert sorted(device.engines) == FLOAT32_ONLY
