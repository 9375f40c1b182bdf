"""The operations of ONNX Runtime's proof: the real library computes them right, and what each is to find is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy
import onnxruntime
import pytest

from backend.common.device_api import WrongResult
from backend.devices import backends, prove
from backend.devices._mechanisms import onnx
from backend.devices._mechanisms.onnx_operations import basic_operations, half_operations, real_product
from backend.devices._mechanisms.onnx_quantized import int4_operations, int8_operations
from backend.devices._mechanisms.onnx_test_models import Operation, Sample, model_of
from backend.devices._mechanisms.reference_math import PRECISE, compare


def operations() -> Iterator[Operation]:
    yield real_product(PRECISE)
    groups = chain(
        basic_operations(rounds_inputs=False),
        half_operations("float16", rounds_inputs=False),
        int8_operations(),
        int4_operations(4, rounds_inputs=False),
        int4_operations(0, rounds_inputs=False),
    )
    yield from chain.from_iterable(groups)


def computed(operation: Operation, sample: Sample) -> Any:
    session = onnxruntime.InferenceSession(model_of([operation]), providers=["CPUExecutionProvider"])
    return session.run([operation.result_name], operation.arrays(sample))[0]


def judged(operation: Operation, sample: Sample, result: Any) -> None:
    compare(operation.name, *sample.expect(operation.flat(result)))


def find(name: str, dtype: str) -> Operation:
    return next(each for each in operations() if each.name.startswith(name) and each.dtype == dtype)


def test_the_processor_computes_every_operation_right() -> None:
    for operation in operations():
        for _ in range(operation.samples):
            sample = operation.new_sample()
            judged(operation, sample, computed(operation, sample))


@pytest.mark.parametrize("name", ["QLinearMatMul 5×33×4099", "MatMulInteger 5×33×4099"])
def test_a_kernel_that_leaves_out_the_last_columns_of_a_wide_product_is_found(name: str) -> None:
    operation = find(name, "int8")
    sample = operation.new_sample()
    result = computed(operation, sample).copy()
    judged(operation, sample, result)
    result[:, 4096:] = 0
    with pytest.raises(WrongResult):
        judged(operation, sample, result)


def test_norms_in_bfloat16_are_right_and_float32_outside() -> None:
    groups = half_operations("bfloat16", rounds_inputs=False)
    norms = [each for each in chain.from_iterable(groups) if "Norm" in each.name]
    for operation in norms:
        sample = operation.new_sample()
        result = computed(operation, sample)
        assert result.dtype == numpy.float32
        judged(operation, sample, result)
    assert len(norms) == 2


def in_half(sums: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a computation whose every step is rounded to float16, as kernels without wider sums do."""

    def run(table: Any) -> Any:
        with numpy.errstate(over="ignore", invalid="ignore"):
            return sums(table.astype("f2"))

    return run


def one_by_one(table: Any) -> Any:
    """Return each row's sum, added up in float16."""
    total = numpy.zeros(len(table), "f2")
    for column in table.T:
        total = total + column
    return total[:, None]


def softmax_in_half(table: Any) -> Any:
    powers = numpy.exp(table - table.max(axis=1, keepdims=True))
    return powers / one_by_one(powers)


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("ReduceMean of", lambda table: one_by_one(table) / numpy.float16(4096)),
        ("Softmax of", softmax_in_half),
        ("RMSNorm of", lambda table: table / numpy.sqrt(one_by_one(table * table) / numpy.float16(4096))),
    ],
)
def test_sums_in_half_precision_are_found(name: str, compute: Callable[[Any], Any]) -> None:
    operation = find(name, "float16")
    sample = operation.new_sample()
    (table,) = operation.arrays(sample).values()
    with pytest.raises(WrongResult):
        judged(operation, sample, in_half(compute)(table))


@pytest.mark.parametrize(("name", "dtype"), [("Attention of a step", "float32"), ("Attention of a step", "float16")])
def test_attention_that_ignores_its_lengths_is_found(name: str, dtype: str) -> None:
    operation = find(name, dtype)
    sample = operation.new_sample()
    arrays = operation.arrays(sample)
    arrays[f"{operation.name}/last"][:] = arrays[f"{operation.name}/total"] - 1
    session = onnxruntime.InferenceSession(model_of([operation]), providers=["CPUExecutionProvider"])
    with pytest.raises(WrongResult):
        judged(operation, sample, session.run(None, arrays)[0])


@pytest.mark.parametrize(
    ("name", "dtype", "spoil"),
    [
        ("MatMulNBits", "int4", lambda result: result * 0.5),
        ("MatMulNBits", "int4", lambda result: result + 0.125),
        ("MatMulInteger", "int8", lambda result: result.clip(-32768, 32767)),
        ("MatMulInteger 5×33×4099", "int8", lambda result: numpy.concatenate([result[:, :-1], result[:, :1]], 1)),
        ("MatMulNBits 5×64×4160 of float16", "int4", lambda result: result * 0.5),
        ("QLinearMatMul", "int8", lambda result: result + numpy.uint8(1)),
        ("DynamicQuantizeLinear", "int8", lambda result: result * 1.01),
        ("MatMul 7", "float16", lambda result: numpy.concatenate([result[:-1], result[:1] * 0])),
    ],
)
def test_a_quantized_product_that_is_off_is_found(name: str, dtype: str, spoil: Callable[[Any], Any]) -> None:
    operation = find(name, dtype)
    sample = operation.new_sample()
    with pytest.raises(WrongResult):
        judged(operation, sample, spoil(computed(operation, sample)))


def test_the_processor_is_proved_in_every_data_type() -> None:
    cpu = backends()["cpu"]
    steps: list[str] = []
    proof = prove("cpu", onnx.enumerate_devices(cpu, "onnxruntime")[0], steps.append)
    assert steps == ["float32", "float16", "bfloat16", "int8", "int4"]
    assert proof.unusable == {}
    done = {(row["operation"].partition(" ")[0], row["dtype"]) for row in proof.checks if "skipped" not in row}
    assert {
        ("MatMulNBits", "int4"),
        ("MatMulInteger", "int8"),
        ("Attention", "float16"),
        ("RMSNorm", "float32"),
    } <= done
    large = [row for row in proof.checks if row["operation"].count("×") == 2 and row["dtype"] == "float32"]
    assert len(large) >= 2  # run more than once
