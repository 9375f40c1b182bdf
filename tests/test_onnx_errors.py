"""Messages of ONNX Runtime become errors of the right kind, with the figures that the message contains."""

from __future__ import annotations

import pytest

from backend.common.errors import TouchstoneError, Validation
from backend.engines._audio.memory_placement import with_activation_memory
from backend.engines._memory_errors import needs_more_memory, out_of_memory_message
from backend.engines._onnx.errors import translate_error

PREFIX = "[ONNXRuntimeError] : 1 : FAIL : "
CASES: list[tuple[str, bool, str, str]] = [
    (
        "Load model from m.onnx failed:/src/onnxruntime/core/graph/model.cc:180 Model() Unsupported model IR version: "
        "14, max supported IR version: 12",
        True, "model_incompatible", "has ONNX IR version 14; this runtime reads up to 12",
    ),
    (
        "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. Opset 99"
        " is under development and support for this is limited.\nCurrent official support for domain ai.onnx is till "
        "opset 23.",
        True, "model_incompatible", "needs operator set 99 of ai.onnx; this runtime supports up to 23",
    ),
    (
        "Fatal error: com.example:Frobnicate(-1) is not a registered function/op",
        True, "model_incompatible", "operator com.example::Frobnicate",
    ),
    (
        "Fatal error: :Frobnicate(-1) is not a registered function/op",
        True, "model_incompatible", "operator Frobnicate,",
    ),
    (
        "No Op registered for Gelu with domain_version of 11",
        True, "model_incompatible", "operator Gelu of operator set 11",
    ),
    (
        "NOT_IMPLEMENTED : Could not find an implementation for Add(14) node with name 'plus'",
        True, "model_incompatible", "uses Add (version 14, node 'plus')",
    ),
    (
        "Node conv: grouped 3-D convolution is not supported by this provider",
        True, "model_incompatible", "grouped 3-D convolution is not supported by this provider",
    ),
    (
        "This session contains graph nodes that are assigned to the default CPU EP, but fallback is disabled",
        True, "model_incompatible", "does not support all nodes",
    ),
    (
        "Non-zero status code returned while running MatMul node. Name:'m' Status Message: Program MatMul requires f16 "
        "but the device does not support it.",
        False, "model_incompatible", "computes in float16, which this device cannot",
    ),
    ("Error while parsing WGSL: error: 'f16' type used without 'f16' extension enabled", False,
     "model_incompatible", "computes in float16"),
    ("extension 'f16' is not allowed in the current environment", False, "model_incompatible", "float16"),
    ("The GPU does not support FP16 arithmetic", False, "model_incompatible", "float16"),
    ("Float16 kernels are not available on this adapter", False, "model_incompatible", "computes in float16"),
    (
        "Failed to allocate memory for requested buffer of size 2500000000",
        False, "out_of_memory", "(2.5 GB at once)",
    ),
    ("bad_alloc", True, "out_of_memory", "g.onnx ran out of memory"),
    ("CUDA error cudaErrorIllegalAddress: an illegal memory access", False, "device_lost", "The device was lost"),
    ("INVALID_PROTOBUF : Protobuf parsing failed.", True, "model_broken", "not an ONNX file, or is truncated"),
    ("External data path ../secret escapes model directory", True, "model_broken", "outside its folder"),
    ("INVALID_GRAPH : Type Error: Type 'tensor(int64)' of input is invalid", True, "model_broken", "Type Error"),
    ("The provider could not start", True, "model_load_failed", "The provider could not start"),
    ("Got invalid dimensions for input: x", False, "validation_error", "could not compute these inputs: Got invalid"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "loading", "code", "detail"), CASES)
def test_a_message_of_the_library_becomes_an_error_of_its_kind(
    message: str, loading: bool, code: str, detail: str
) -> None:
    error = translate_error(RuntimeError(PREFIX + message), "g.onnx", loading)
    assert error.code == code and detail in error.detail and error.remedy
    assert "[ONNXRuntimeError]" not in error.detail and not error.detail.endswith("..")


def test_the_place_in_the_library_s_source_is_left_out() -> None:
    text = PREFIX + "/home/x/onnxruntime/core/framework/op_kernel.cc:83 virtual void f(int) Shapes differ."
    assert translate_error(RuntimeError(text), "g", False).detail == "g could not compute these inputs: Shapes differ."


def test_an_error_of_this_program_passes_unchanged() -> None:
    error = Validation("a", "b")
    assert translate_error(error, "g", True) is error


def test_a_message_with_a_million_characters_of_a_node_s_name_is_cut_and_read_at_once() -> None:
    error = translate_error(RuntimeError(f"{PREFIX}Bad node {'x' * 1_000_000}"), "g", False)
    assert "Bad node xxx" in error.detail and len(error.detail) < 600


def test_an_exception_for_memory_needs_no_words() -> None:
    error: TouchstoneError = translate_error(MemoryError(), "g", False)
    assert error.code == "out_of_memory"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "MemoryError:"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "RuntimeError: CUDA out of memory. Tried"),
        (RuntimeError("OUT_OF_DEVICE_MEMORY"), "RuntimeError: OUT_OF"),
        (RuntimeError("illegal memory access"), None),
        (ValueError("no such file"), None),
    ],
)
def test_an_exception_of_a_library_that_ran_out_of_memory_is_recognised(error: Exception, message: str | None) -> None:
    found = out_of_memory_message(error)
    assert found is None if message is None else found is not None and found.startswith(message)
    assert len(out_of_memory_message(MemoryError("x" * 5000)) or "") == 600


def test_what_a_model_needs_and_what_is_free_are_in_gigabytes() -> None:
    error = needs_more_memory("m", 8_230_000_000, 4_000_000_000, " on cuda:0")
    assert error.detail == "m needs 8.2 GB on cuda:0; 4.0 GB available."


@pytest.mark.parametrize(
    ("weights", "needed"),
    [
        (0, 0),
        (400_000_000, 800_000_000),  # small: as much again
        (1_000_000_000, 2_000_000_000),
        (2_000_000_000, 3_000_000_000),  # a gigabyte
        (10_000_000_000, 12_000_000_000),  # a fifth
    ],
)
def test_the_memory_for_computing_grows_with_the_weights(weights: int, needed: int) -> None:
    assert with_activation_memory(weights) == needed
