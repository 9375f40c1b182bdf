"""An engine whose library cannot share the process of the device's proof is proved in a separate process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from backend.child.programs import probe, prove_engine
from backend.common.device_api import DetectedDevice, WrongResult
from backend.common.errors import DeviceLost
from backend.common.types import Proof
from backend.devices import check_openvino
from backend.engines import engines, load_engine

CARD = {"name": "Intel Arc", "kind": "gpu", "hardware_id": None, "memory_bytes": None, "memory_free_bytes": None}
ORDER = {"backend": "onnx-openvino", "found": CARD, "runtime": "openvino", "device": "onnx-openvino:0"}
Spoil = Callable[[Any, str], Any]


class Core:
    """OpenVINO's interface over ONNX Runtime. `spoil` gets each result and its data type."""

    def __init__(self, spoil: Spoil = lambda result, dtype: result, runs_on: str = "", lacks: str = "") -> None:
        self.spoil, self.runs_on, self.lacks = spoil, runs_on, lacks
        self.hints: set[str | None] = set()

    def read_model(self, model: Any) -> bytes:
        """Return the bytes of the model."""
        return bytes(model.read())

    def compile_model(self, model: bytes, name: str, config: dict[str, str]) -> Any:
        """Return a session with the methods of a compiled model."""
        if self.lacks and self.lacks.encode() in model:
            raise RuntimeError(f"Exception from core.cpp: {self.lacks} is not supported")
        self.hints.add(config.get("INFERENCE_PRECISION_HINT"))
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        types = [*session.get_inputs(), *session.get_outputs()]
        dtype = "float16" if any("float16" in each.type for each in types) else names[0]

        def infer(arrays: dict[str, Any]) -> dict[str, Any]:
            results = session.run(names, arrays)
            return {name: self.spoil(result, dtype) for name, result in zip(names, results, strict=True)}

        return SimpleNamespace(
            get_property=lambda _: [self.runs_on or name],
            create_infer_request=lambda: SimpleNamespace(infer=infer),
            output=lambda name: name,
        )


@pytest.mark.parametrize(("name", "hints"), [("CPU", {"f32"}), ("NPU", {None})])
def test_a_sound_device_has_no_unusable_type(name: str, hints: set[str | None]) -> None:
    core = Core()
    assert check_openvino(core, name) == {} and core.hints == hints


def test_wrong_numbers_in_half_precision_are_named() -> None:
    unusable = check_openvino(Core(lambda result, dtype: result * 2 if dtype == "float16" else result), "GPU")
    assert list(unusable) == ["float16"] and "float16 results are wrong on this device (MatMul" in unusable["float16"]


def test_wrong_integers_are_named() -> None:
    unusable = check_openvino(Core(lambda result, dtype: result + 1 if result.dtype == "int32" else result), "GPU")
    assert list(unusable) == ["int8"] and "MatMulInteger" in unusable["int8"]


def test_wrong_numbers_in_float32_are_raised() -> None:
    with pytest.raises(WrongResult, match="MatMul float32 was off"):
        check_openvino(Core(lambda result, dtype: result * 1.1), "CPU")


def test_work_on_another_device_is_raised() -> None:
    with pytest.raises(WrongResult, match="given to GPU, but ran on CPU"):
        check_openvino(Core(runs_on="CPU"), "GPU")


def test_what_a_device_does_not_support_is_no_fault_but_the_product_is_needed() -> None:
    assert check_openvino(Core(lacks="Conv"), "GPU") == {}
    with pytest.raises(RuntimeError, match="not supported"):
        check_openvino(Core(lacks="MatMul"), "GPU")


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        ({}, {"unusable": {}}),
        ({"int8": "int8 results are wrong"}, {"unusable": {"int8": "int8 results are wrong"}}),
        (DeviceLost("None of them is it.", "Refresh."), {"wrong": "None of them is it."}),
        (WrongResult("off by 3"), {"wrong": "wrong result: off by 3"}),
        (RuntimeError("first\nsecond"), {"wrong": "RuntimeError: first"}),
        (ImportError(), {"wrong": "ImportError: "}),
    ],
)
def test_the_program_prints_what_the_engine_found(
    outcome: Any, result: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prove(device: str, detected: DetectedDevice) -> dict[str, str]:
        assert (device, detected.name) == ("onnx-openvino:0", "Intel Arc")
        if isinstance(outcome, Exception):
            raise outcome
        return dict(outcome)

    monkeypatch.setattr(load_engine("openvino-genai"), "prove", prove)
    monkeypatch.setattr(prove_engine, "show_only", lambda *_: None)
    assert prove_engine.main([json.dumps({**ORDER, "engine": "openvino-genai"})]) == 0
    assert json.loads(capsys.readouterr().out) == result


@pytest.mark.parametrize(
    ("printed", "code", "unusable"),
    [
        ('{"unusable": {}}', 0, {}),
        ('noise\n{"unusable": {"int8": "wrong"}}\n', 0, {"int8": "wrong"}),
        ('{"wrong": "off by 3"}', 0, {"float32": "openvino-genai fails on this device (off by 3)"}),
        ("", -11, {"float32": "openvino-genai fails on this device (its process ended with signal 11)"}),
        ("{half", 1, {"float32": "openvino-genai fails on this device (its process ended with exit code 1)"}),
    ],
)
def test_the_probe_offers_the_engine_only_if_it_computes(
    printed: str, code: int, unusable: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other engines of the device stay."""
    orders: list[Any] = []

    def run(words: list[str], **_: Any) -> Any:
        assert words[3] == "prove_engine" and Path(words[2], "__main__.py").is_file()
        orders.append(json.loads(words[4]))
        return subprocess.CompletedProcess(words, code, printed, "")

    sent: list[Any] = []
    proof = Proof("MatMul", "float32", 0.0, 1e-4, 0.1, {}, "2026-01-01T00:00:00Z", 1)
    for name in ("onnxruntime", "onnx-genai", "openvino-genai", "adapter"):
        monkeypatch.setattr(load_engine(name), "check", lambda: {"a": "1"})
    monkeypatch.setattr(probe, "mechanism", lambda *_: SimpleNamespace(load=lambda library: None))
    monkeypatch.setattr(probe, "show_only", lambda *_: None)
    monkeypatch.setattr(probe, "_proved", lambda *_: proof)
    monkeypatch.setattr(subprocess, "run", run)
    probe._prove(SimpleNamespace(send=sent.append), ORDER)  # type: ignore[arg-type]
    assert orders == [{**ORDER, "engine": "openvino-genai"}]
    refused = {frame["data_type"]: frame["detail"] for frame in sent if frame["op"] == "no_engine"}
    assert refused == unusable
    offered = [frame for frame in sent if frame["op"] == "engines"][-1]["engines"]
    assert ("openvino-genai" in offered) == (not unusable) and "onnxruntime" in offered
    assert any(frame["op"] == "step" and frame["what"] == "computing with openvino" for frame in sent)


def test_an_engine_that_proves_itself_has_the_function() -> None:
    for name, engine in engines().items():
        assert hasattr(load_engine(name), "prove") == engine.proves_itself
