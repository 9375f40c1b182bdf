"""Proofs by children that crash, hang or send wrong results: each becomes a state with reason and remedy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from backend.child import handle
from backend.common.types import Device
from backend.devices import WrongResult, backends, mechanism, prove
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.classification import proved
from backend.scheduling.probing.device_merge import merged
from backend.scheduling.probing.prober import Outcome
from tests.faulty import faulty

LIMIT_S = 2.5
PROOF: dict[str, Any] = {
    **{"operation": "MatMul", "dtype": "float32", "max_abs_error": 0.0, "tolerance": 1e-4, "seconds": 0.1},
    **{"versions": {}, "at": "2026-01-01T00:00:00Z", "pid": 1},
}


def probed(fault: str, limit_s: float = 60) -> Device:
    """The device after one round with a child that plays the fault."""

    async def once() -> Device:
        probes = ProbeService({"base": "python"}, limit_s, faulty(fault), DeviceQueue)
        assert probes.probing
        await probes.probe()
        assert not probes.probing
        await probes.wait_until_idle()
        return probes.devices["cpu"]

    device = asyncio.run(once())
    assert (device.state == "ready") == (device.proof is not None and device.reason is None)
    assert device.state == "ready" or (device.reason and device.remedy)
    return device


def test_a_device_that_computed_rightly_is_ready() -> None:
    device = probed("ok")
    assert (device.state, device.stage, device.engines) == ("ready", "runs", ["llama.cpp"]) and "text" in device.tasks


@pytest.mark.parametrize(("fault", "step"), [("dies_listing", "listing cpu"), ("dies_proving", "computing on cpu")])
def test_a_crash_is_broken_and_names_step_signal_and_last_line(fault: str, step: str) -> None:
    device = probed(fault)
    assert device.state == "broken" and device.proof is None
    assert device.reason and all(word in device.reason for word in (step, "SIGSEGV", "page fault"))


@pytest.mark.parametrize("fault", ["hangs_listing", "hangs_proving"])
def test_a_hang_costs_its_limit_only(fault: str) -> None:
    device = probed(fault, LIMIT_S)
    assert device.state == "broken" and device.reason and f"timeout after {LIMIT_S:g} s" in device.reason


def test_each_engine_has_the_limit_for_itself() -> None:
    """Two steps of 1.5 s, at a limit of 2.5."""
    device = probed("slow_engines", LIMIT_S)
    assert (device.state, device.engines) == ("ready", ["llama.cpp"]) and "not checked" not in f"{device.lacks}"


def test_an_engine_that_hangs_is_not_said_to_be_missing() -> None:
    device = probed("hangs_engine", LIMIT_S)
    assert (device.state, device.engines) == ("ready", ["llama.cpp"])
    why = device.lacks["onnx-genai"]
    assert why.startswith("It was not checked in the runtime base: it hung: timeout after") and "less busy" in why


def test_an_engine_whose_library_does_not_load_is_said_to_lack_it() -> None:
    frames: list[dict[str, Any]] = [{"op": "proved", "proof": PROOF}]
    detail = "ModuleNotFoundError: No module named 'diffusers'"
    frames.append({"op": "no_engine", "engine": "diffusers", "detail": detail})
    frames.append({"op": "engines", "engines": {"torch": {}}})
    found = proved(Device("cpu", "CPU", "cpu", "cpu", "probing"), "torch", Outcome(frames))
    assert set(found.lacks) == {"diffusers"} and "No module named 'diffusers'" in found.lacks["diffusers"]
    assert "`python -m backend runtimes update torch` adds it" in found.lacks["diffusers"]
    other = replace(found, engines=["diffusers"], lacks={}, served_by={"mine": ["diffusers"]})
    assert merged([found, other]).lacks == {}


def test_wrong_numbers_are_broken_with_the_error_measured() -> None:
    device = probed("wrong")
    assert device.state == "broken" and device.reason and "off by up to 3" in device.reason


def test_a_device_without_an_engine_is_not_offered() -> None:
    device = probed("no_engine")
    assert device.state == "broken" and device.reason and "libgomp" in device.reason
    assert device.remedy and "apt-get install -y libgomp1" in device.remedy


def test_an_end_without_an_answer_is_broken() -> None:
    device = probed("exits_silently")
    assert device.state == "broken" and device.reason and "without an answer" in device.reason


def test_chatter_on_stdout_does_no_harm() -> None:
    assert probed("chatty").state == "ready"


def test_many_who_ask_at_once_are_served_by_two_rounds() -> None:
    started = 0

    def counting(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        nonlocal started
        started += arguments[1] == "prove"
        return faulty("ok")(python, arguments)

    async def ask() -> None:
        probes = ProbeService({"base": "python"}, 5, counting, DeviceQueue)
        first = asyncio.create_task(probes.probe())
        await asyncio.sleep(0.01)
        await asyncio.gather(*(probes.probe() for _ in range(20)))
        assert first.done() and not probes.probing and probes.devices["cpu"].state == "ready"
        assert started == 2, "the one that ran, and one that began after all had asked"
        await probes.probe()
        assert started == 3

    asyncio.run(ask())


def test_the_real_cpu_is_proved_by_the_real_child() -> None:
    async def once() -> Device:
        probes = ProbeService({"base": sys.executable}, 60, handle.spawn, DeviceQueue)
        await probes.probe()
        assert probes.hardware["cpu:0"].devices == ["cpu"]
        return probes.devices["cpu"]

    device = asyncio.run(once())
    assert device.state == "ready" and device.proof
    assert 0 < device.proof.max_abs_error < device.proof.tolerance < 0.2 and device.proof.pid != 0
    assert {"onnxruntime", "xllamacpp"} <= set(device.versions)
    done = {check["operation"] for check in device.proof.checks if "skipped" not in check}
    assert {"MatMul", "Conv", "ReduceMean", "Softmax", "Gather"} <= done
    assert {check["dtype"] for check in device.proof.checks} == {"float32", "float16", "bfloat16", "int8", "int4"}
    assert device.proof.evidence and "CPUExecutionProvider" in device.proof.evidence
    assert device.proof.gflops and device.proof.gflops > 0.1 and device.stage == "measured"


def spoilt(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], Any]) -> None:
    """Lets every result of ONNX Runtime go wrong in that way, and proves the processor."""
    import onnxruntime

    real = onnxruntime.InferenceSession.run
    monkeypatch.setattr(onnxruntime.InferenceSession, "run", lambda *given: [spoil(real(*given)[0])])
    prove("cpu", mechanism("cpu", "onnxruntime").enumerate_devices(backends()["cpu"], "onnxruntime")[0])


def test_the_proof_refuses_wrong_numbers_and_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongResult, match=r"MatMul float32 was off by up to .*; all are 1\.001 times what"):
        spoilt(monkeypatch, lambda result: result * result.dtype.type(1.001))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_proof_refuses_what_is_no_number(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    with pytest.raises(WrongResult, match="NaN or infinite"):
        spoilt(monkeypatch, lambda result: result * 0 + value)


def test_an_engine_that_hangs_takes_none_of_the_others_along() -> None:
    told: list[dict[str, dict[str, str]]] = [{}, {"llama.cpp": {}}, {"llama.cpp": {}, "transformers": {"torch": "2"}}]
    frames: list[dict[str, Any]] = [{"op": "proved", "proof": PROOF}]
    frames += [{"op": "engines", "engines": each} for each in told]
    frames.append({"op": "step", "what": "loading another", "backends": ["cpu"]})
    device = Device("cpu", "CPU", "cpu", "cpu", "probing")
    found = proved(device, "torch", Outcome(frames, "it hung: timeout after 30 s", hung=True))
    assert (found.state, found.engines, found.versions) == ("ready", ["llama.cpp", "transformers"], {"torch": "2"})
