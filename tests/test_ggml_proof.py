"""The proof through ggml, with its real CPU backend: every format is right, and a fault in one of them is found."""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from backend.common.device_api import DetectedDevice, UnusableDataType, WrongResult
from backend.common.types import Proof
from backend.devices import backends
from backend.devices._mechanisms import ggml_proof
from backend.devices._mechanisms.ggml_blocks import FORMATS, WeightFormat
from backend.devices._mechanisms.ggml_operations import real_product
from backend.devices._mechanisms.proof_record import ProofRecorder
from backend.engines import engines
from tests.ggml_cpu import FaultyGgml, library, opened

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there the library exports ggml's functions")
_LIBRARY = "ggml"


def proof_of(base: Any, monkeypatch: pytest.MonkeyPatch) -> Proof:
    monkeypatch.setattr(ggml_proof, "open_device", lambda backend, detected: opened(base))
    monkeypatch.setattr(ggml_proof, "versions", lambda library: {})
    monkeypatch.setattr(ggml_proof, "_COMPILING_S", 600.0)
    detected = DetectedDevice("Card", "gpu", None, None, None, _LIBRARY)
    return ggml_proof.prove(backends()["vulkan"], detected, lambda dtype: None)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.dtype)
def test_rows_hold_the_numbers_that_ggml_reads(form: WeightFormat) -> None:
    names = {"float16": "ggml_fp16_to_fp32_row", "bfloat16": "ggml_bf16_to_fp32_row"}
    read = getattr(library(), names.get(form.dtype, f"dequantize_row_{form.dtype[:2].lower()}{form.dtype[2:]}"))
    read.restype = None
    for seed in range(20):
        row = form.new_row(random.Random(seed), 512)
        for data, sign in ((row.data, 1), (row.negated, -1)):
            out = (ctypes.c_float * 512)()
            read(ctypes.c_char_p(data), out, ctypes.c_int64(512))
            assert list(out) == [sign * number for number in row.numbers]


def test_the_cpu_computes_every_operation_right(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proof_of(FaultyGgml(), monkeypatch)
    assert proof.unusable == {} and "which is not host memory" in str(proof.evidence)
    assert not [row for row in proof.checks if "skipped" in row or "failed" in row]
    columns = {(row["dtype"], row["operation"].endswith("×1")) for row in proof.checks if "×512×" in row["operation"]}
    wide = {row["dtype"] for row in proof.checks if row["operation"].startswith("MatMul 4099×256×")}
    assert wide == {"float32", *(form.dtype for form in FORMATS)}
    assert columns == {
        (dtype, one) for dtype in ("float32", *(form.dtype for form in FORMATS)) for one in (True, False)
    }


def test_a_buffer_in_host_memory_is_no_card_s(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongResult, match="which is host memory"):
        proof_of(FaultyGgml(on_host=True), monkeypatch)


def test_a_status_of_ggml_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="returned the status -1 for a computation"):
        proof_of(FaultyGgml(status=-1), monkeypatch)


def test_an_operation_that_the_device_lacks_is_skipped_or_refuses_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = [("ggml_flash_attn_ext", "float32"), ("ggml_mul_mat", "bfloat16"), ("ggml_mul_mat", "Q4_1")]
    proof = proof_of(FaultyGgml(lacks=lacks), monkeypatch)
    assert list(proof.unusable) == ["Q4_1"] and "not supported" in proof.unusable["Q4_1"]
    skipped = {(row["operation"].partition(" ")[0], row["dtype"]) for row in proof.checks if "skipped" in row}
    assert skipped == {("Attention", "float16"), ("MatMul", "bfloat16"), ("MatMul", "Q4_1")}
    assert engines()["llama.cpp"].unusable_type("vulkan", proof) == "Q4_1"
    assert engines()["llama.cpp"].unusable_type("cpu", proof) is None


def test_kernels_that_take_long_to_compile_are_left_to_the_next_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = ProofRecorder()
    prover = ggml_proof.Prover(library(), library().ggml_backend_cpu_init(), recorder)
    monkeypatch.setattr(ggml_proof, "_COMPILING_S", 0.0)
    differences = prover.check(real_product())
    proof = recorder.proof("", differences, {}, "", prover.check_all())
    skipped = [row for row in proof.checks if "skipped" in row]
    assert [row["dtype"] for row in skipped] == 2 * [form.dtype for form in FORMATS] and proof.unusable == {}
    assert all("refresh the device" in row["skipped"] for row in skipped)


def test_wrong_float32_refuses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def halve(numbers: array[float]) -> array[float]:
        return array("f", (number / 2 for number in numbers))

    with pytest.raises(WrongResult, match=r"RMSNorm of 4096 float32 .*all are 0.5 times"):
        proof_of(FaultyGgml([("ggml_rms_norm", "", 0, halve)]), monkeypatch)


def test_the_processor_s_kernels_are_checked_where_the_library_exports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ggml_proof.check_processor(library())
    ggml_proof.check_processor(SimpleNamespace())

    def doubled(numbers: array[float]) -> array[float]:
        return array("f", (2 * number for number in numbers))

    monkeypatch.setattr(ggml_proof, "declare", lambda library: FaultyGgml([("ggml_mul_mat", "Q6_K", 1, doubled)]))
    with pytest.raises(UnusableDataType, match="Q6_K results are wrong on the CPU .*all are 2 times") as caught:
        ggml_proof.check_processor(library())
    assert caught.value.dtype == "Q6_K"
