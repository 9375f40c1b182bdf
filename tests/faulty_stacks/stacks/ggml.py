"""Vulkan stacks whose kernels are wrong in one format of weights, one shape or one operation.

llama.cpp's real operations run on the processor, with a fault in what is read back, from the probe program to the list.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.child.programs import probe
from backend.common.device_api import DetectedDevice
from backend.common.types import Device
from backend.devices import backends, mechanism
from backend.devices._mechanisms import ggml, ggml_proof
from backend.scheduling.probing.classification import proved, unproved
from backend.scheduling.probing.prober import Outcome
from tests.faulty_stacks.stack import Category, Stack
from tests.ggml_cpu import MANY, Fault, FaultyGgml, opened

_DETECTED = DetectedDevice(
    "A card", "gpu", "pci:0000:01:00.0", 8 << 30, 7 << 30, "ggml", identity={"pci": "0000:01:00.0"}
)


def listed(base: FaultyGgml) -> Device:
    """Return the device after its proof by the probe program, with this library."""
    frames: list[dict[str, Any]] = []
    order = {"backend": "vulkan", "found": asdict(_DETECTED), "runtime": "llama-vulkan", "device": "vulkan:0"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "show_only", lambda backend, device: None)
        patch.setattr(ggml, "load", lambda library: None)
        patch.setattr(ggml, "free_bytes", lambda backend, detected: 7 << 30)
        patch.setattr(ggml_proof, "open_device", lambda backend, detected: opened(base))
        patch.setattr(ggml_proof, "versions", lambda library: {})
        patch.setattr(ggml_proof, "_COMPILING_S", 600.0)
        probe._prove(SimpleNamespace(send=frames.append), order)  # type: ignore[arg-type]
    return proved(
        unproved("vulkan:0", backends()["vulkan"], "llama-vulkan", _DETECTED), "llama-vulkan", Outcome(frames)
    )


def _processor_without_llama(folder: Path) -> None:
    """Check a processor whose llama.cpp is wrong in Q4_K: it stays ready, with the other engines."""
    frames: list[dict[str, Any]] = []
    detected = mechanism("cpu", "onnxruntime").enumerate_devices(backends()["cpu"], "onnxruntime")[0]
    order = {"backend": "cpu", "found": asdict(detected), "runtime": "base", "device": "cpu"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "show_only", lambda backend, device: None)
        wrong = FaultyGgml([("ggml_mul_mat", "Q4_K", 1, _scaled(0.5))])
        patch.setattr(ggml_proof, "declare", lambda library: wrong)
        probe._prove(SimpleNamespace(send=frames.append), order)  # type: ignore[arg-type]
    device = proved(unproved("cpu", backends()["cpu"], "base", detected), "base", Outcome(frames))
    assert device.state == "ready" and "onnxruntime" in device.engines and "llama.cpp" not in device.engines
    lacks = device.lacks["llama.cpp"]
    assert re.search(r"^Q4_K results are wrong on the CPU .*: llama.cpp computes in Q4_K\. ", lacks), lacks
    assert "does not fit this processor: use another engine" in lacks


def _refused(reason: str, remedy: str, base: Callable[[], FaultyGgml], folder: Path) -> None:
    device = listed(base())
    assert (device.state, device.stage, device.layer) in (
        ("broken", "measured", "computation"),
        ("broken", "visible", "computation"),
    )
    assert re.search(reason, str(device.reason)), device.reason
    assert re.search(remedy, str(device.remedy)), device.remedy


def _offered(base: Callable[[], FaultyGgml], folder: Path) -> None:
    device = listed(base())
    assert (device.state, device.stage, device.reason) == ("ready", "measured", None), device.reason
    assert device.engines == ["llama.cpp"] and device.proof and device.proof.unusable == {}


def _scaled(factor: float) -> Fault:
    return lambda numbers: array("f", (number * factor for number in numbers))


def _last_zero(count: int) -> Fault:
    return lambda numbers: numbers[:-count] + array("f", bytes(4 * count))


def _one_nan(numbers: array[float]) -> array[float]:
    numbers[len(numbers) // 3] = float("nan")
    return numbers


def _infinite(numbers: array[float]) -> array[float]:
    return array("f", (number * float("inf") for number in numbers))


def _even(numbers: array[float]) -> array[float]:
    """Return probabilities as if every score were the same, which a mask does not change."""
    return array("f", [1 / 4096]) * len(numbers)


def _large(fault: Fault) -> Fault:
    return lambda numbers: fault(numbers) if len(numbers) > 1 << 18 else numbers


def _late(fault: Fault) -> Fault:
    runs = iter(range(1000))
    return lambda numbers: fault(numbers) if next(runs) >= 1 else numbers


def _wrong_type(
    name: str, dtype: str, columns: int, fault: Fault, pattern: str, operation: str = "ggml_mul_mat"
) -> Stack:
    reason = rf"^No engine can compute on this device: {dtype} results are wrong on this device \(.*{pattern}"
    of = "" if operation == "ggml_mul_mat" else "float32"
    base = partial(FaultyGgml, [(operation, of or dtype, columns, fault)])
    return Stack(
        f"ggml-{name}", "numbers", partial(_refused, reason, "Update the device's driver and the runtime", base)
    )


def _wrong(name: str, operation: str, columns: int, fault: Fault, pattern: str) -> Stack:
    base = partial(FaultyGgml, [(operation, "float32", columns, fault)])
    return Stack(
        f"ggml-{name}",
        "numbers",
        partial(_refused, f"^Wrong result: {pattern}", "update its driver and the runtime", base),
    )


def _healthy(name: str, category: Category = "control", **more: Any) -> Stack:
    return Stack(f"ggml-{name}", category, partial(_offered, partial(FaultyGgml, **more)))


_ON_HOST = partial(FaultyGgml, on_host=True)
STACKS = [
    _wrong_type("Q4_K halved", "Q4_K", 0, _scaled(0.5), "all are 0.5 times"),
    _wrong_type("Q8_0 wrong for one column", "Q8_0", 1, _scaled(1.25), "×1 Q8_0 was off"),
    _wrong_type("Q6_K wrong for many columns", "Q6_K", MANY, _last_zero(64), r"×\d\d\d Q6_K was off .* in 1 of"),
    _wrong_type("Q4_0 not a number", "Q4_0", 1, _one_nan, "1 of .*NaN"),
    _wrong_type("Q4_1 right only once", "Q4_1", 1, _late(_scaled(0.0)), "every entry is 0"),
    _wrong_type("float16 last row never written", "float16", MANY, _last_zero(520), "in 1 of"),
    _wrong_type("bfloat16 doubled", "bfloat16", 0, _scaled(2.0), "all are 2 times"),
    _wrong_type("attention wrong", "float16", 0, _scaled(0.9), "Attention of a prompt", "ggml_flash_attn_ext"),
    _wrong("norms overflow", "ggml_rms_norm", 0, _infinite, "RMSNorm of 4096 float32 returned"),
    _wrong("softmax ignores its mask", "ggml_soft_max_ext", 0, _even, "Softmax of 4096 float32 was off"),
    _wrong(
        "large products lose their end", "ggml_mul_mat", MANY, _large(_last_zero(32)), r"MatMul \d+×512×\d+ .* 1 of"
    ),
    _wrong("sums in half", "ggml_sum_rows", 0, _scaled(0.99), "Sum of 4096 float32"),
    Stack(
        "ggml-buffer in host memory",
        "numbers",
        partial(_refused, "^Wrong result: tensors for A card .*host memory", "update its driver", _ON_HOST),
    ),
    Stack("ggml-processor wrong in Q4_K", "numbers", _processor_without_llama),
    _healthy("all right"),
    _healthy("without flash attention", lacks=[("ggml_flash_attn_ext", "float32")]),
    _healthy("without bfloat16", lacks=[("ggml_mul_mat", "bfloat16")]),
]
