"""Adapters of Windows through DirectML: software, equal names, another order in another process, missing facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.common.errors import DeviceLost
from backend.common.formats.onnx.writer import Node, Value, write
from backend.scheduling.ranking import by_preference
from tests.faulty_stacks.cases.case import DIRECTML
from tests.faulty_stacks.probed import Expected, compare, load, probed, stack
from tests.faulty_stacks.stack import Category, Stack

INTEL, NVIDIA, AMD = "Intel(R) UHD Graphics 620", "NVIDIA GeForce RTX 3060 Laptop GPU", "AMD Radeon RX 6800"
ARC = "Intel(R) Arc(TM) A770 Graphics"
BASIC, REMOTE = "Microsoft Basic Render Driver", "Microsoft Remote Display Adapter"
ONNX = ("onnxruntime",)
MOVED = "was listed a moment ago, and now .* is in its place"
REFRESH = "then refresh"
ADAPTER = """
ADAPTER = {"title": "Tones", "rate": 8000, "channels": 1, "takes": [], "defaults": {"seconds": 1}, "longest_s": 9}


def load(device, threads):
    return device


def generate(model, wish, progress):
    return []
"""


def dml(name: str, adapters: list[str], expected: list[Expected], category: Category = "windows", **more: Any) -> Stack:
    """Adapters of torch-directml, which reports a name alone."""
    plan = {"cards": [], "cuda": None, "adapters": adapters, **more}
    numbered = {f"directml:{number}": each for number, each in enumerate(expected)}
    return stack(f"DirectML-{name}", category, plan, numbered, DIRECTML)


def ep(
    name: str, luid: int | None = None, memory: str | None = None, discrete: str | None = "1", **more: Any
) -> dict[str, Any]:
    """A device of ONNX Runtime on Windows."""
    facts = {"Description": name, "LUID": luid, "DxgiVideoMemory": memory, "Discrete": discrete}
    metadata = {key: str(value) for key, value in facts.items() if value is not None}
    return {"ep_name": "DmlExecutionProvider", "metadata": metadata, **more}


def onnx(
    name: str,
    devices: list[dict[str, Any]],
    expected: list[Expected],
    category: Category = "windows",
    prove: list[dict[str, Any]] | None = None,
) -> Stack:
    """Devices of ONNX Runtime's DirectML provider; `prove` are those that the process of the proof lists."""
    plan = {"devices": devices, "devices_in": {} if prove is None else {"prove": prove}}
    numbered = {f"onnx-directml:{number}": each for number, each in enumerate(expected)}
    return stack(f"ONNX Runtime's DirectML-{name}", category, plan, numbered, ONNX)


def emulated(name: str | None = None) -> Expected:
    return Expected("ready", name, "emulated", hardware_id="cpu:0")


def gpu(name: str, **more: Any) -> Expected:
    return Expected("ready", name, "gpu", **more)


def lost(name: str, reason: str = MOVED) -> Expected:
    return Expected("unavailable", name, reason=reason, remedy=REFRESH)


async def only_software(folder: Path) -> None:
    """Nothing but software: it is proved and named, and neither `gpu` nor `auto` chooses it."""
    _, devices = await probed(folder, {"cards": [], "cuda": None, "adapters": ["WARP"]}, DIRECTML)
    compare(devices, {"directml:0": emulated("WARP")})
    assert by_preference([replace(devices["directml:0"], tasks=["text"])], "text") == []


async def torch_worker(folder: Path) -> None:
    """The adapters change places after the proof: the worker takes the right one or none."""
    plan: dict[str, Any] = {
        "cards": [],
        "cuda": None,
        "adapters": [INTEL, NVIDIA],
        "adapters_in": {"run": [NVIDIA, INTEL]},
    }
    subject, devices = await probed(folder, plan, DIRECTML)
    compare(devices, {"directml:0": gpu(INTEL), "directml:1": gpu(NVIDIA)})
    next((folder / "env").glob("lib/*/site-packages")).joinpath("soundfile.py").touch()  # the engine imports it
    model = folder / "tones_adapter.py"
    model.write_text(ADAPTER)
    for id_ in devices:
        with pytest.raises(DeviceLost, match=f"{id_} cannot be opened: .*{MOVED}") as caught:
            await load(folder, subject, id_, "adapter", model)
        assert "Refresh the devices" in caught.value.remedy


async def onnx_worker(folder: Path) -> None:
    """The order of the list changes after the proof: by LUID, name or memory the worker finds its adapter."""
    first, second = ep(ARC, memory="16256 MB"), ep(ARC, memory="8064 MB")
    subject, devices = await probed(folder, {"devices": [first, second], "devices_in": {"run": [second, first]}}, ONNX)
    assert [device.state for device in devices.values()] == ["ready", "ready"]
    for id_ in devices:
        await load(folder, subject, id_, "onnxruntime", _model(folder))


async def onnx_worker_without_its_adapter(folder: Path) -> None:
    """The adapter was replaced by one with the same LUID, and another one is gone."""
    plan = {"devices": [ep(ARC, 51222), ep(AMD, 60000)], "devices_in": {"run": [ep(NVIDIA, 51222)]}}
    subject, devices = await probed(folder, plan, ONNX)
    compare(devices, {"onnx-directml:0": gpu(ARC), "onnx-directml:1": gpu(AMD)})
    for id_, reason in (("onnx-directml:0", MOVED), ("onnx-directml:1", "is gone")):
        with pytest.raises(DeviceLost, match=reason):
            await load(folder, subject, id_, "onnxruntime", _model(folder))


def _model(folder: Path) -> Path:
    path = folder / "sum.onnx"
    inputs = [Value(name, "float32", [2]) for name in "ab"]
    path.write_bytes(write("sum", [Node("Add", ["a", "b"], ["y"])], inputs, [Value("y", "float32", [2])]))
    return path


LUID = "luid:0x00000000_0x0000c816"
STACKS = [
    dml("hybrid laptop", [INTEL, NVIDIA], [gpu(INTEL), gpu(NVIDIA)], "control"),
    dml("two equal adapters", [ARC, ARC], [gpu(ARC), gpu(ARC)], "control"),
    dml("Qualcomm's", ["Qualcomm(R) Adreno(TM) X1-85 GPU"], [gpu("Qualcomm(R) Adreno(TM) X1-85 GPU")], "control"),
    dml("a Surface with Microsoft's chip", ["Microsoft SQ2 Adreno 690"], [gpu("Microsoft SQ2 Adreno 690")], "control"),
    dml(
        "a name in another script",
        ["インテル(R) UHD グラフィックス"],
        [gpu("インテル(R) UHD グラフィックス")],
        "control",
    ),
    dml(
        "another order in the proof",
        [INTEL, NVIDIA],
        [lost(INTEL), lost(NVIDIA)],
        adapters_in={"prove": [NVIDIA, INTEL]},
    ),
    dml(
        "one less in the proof",
        [INTEL, NVIDIA],
        [gpu(INTEL), lost(NVIDIA, "no DirectX 12 adapter")],
        adapters_in={"prove": [INTEL]},
    ),
    dml("another adapter in the proof", [AMD], [lost(AMD)], adapters_in={"prove": [BASIC]}),
    dml("Basic Render Driver and a card", [AMD, BASIC], [gpu(AMD), emulated(BASIC)]),
    dml("remote desktop session", [REMOTE], [emulated(REMOTE)]),
    dml("a basic adapter's name in Russian", ["Базовый видеоадаптер (Майкрософт)"], [emulated()]),
    dml(
        "a virtual machine's display", ["VMware SVGA 3D", "Parallels Display Adapter (WDDM)"], [emulated(), emulated()]
    ),
    Stack("DirectML-nothing but WARP", "windows", only_software),
    dml(
        "one adapter without a name",
        [INTEL, AMD],
        [
            Expected("broken", reason="while describing directml:0: RuntimeError: 887A0005", remedy="driver|device"),
            gpu(AMD),
        ],
        at={f"directml.device_name of {INTEL}": [["raise", ["RuntimeError", "887A0005"]]]},
    ),
    dml(
        "an adapter without DirectX 12",
        ["NVIDIA GeForce GT 430"],
        [Expected("broken", reason="D3D12CreateDevice failed with 887A0004", remedy="does not support DirectX 12")],
        at={"directml.device": [["raise", ["RuntimeError", "D3D12CreateDevice failed with 887A0004"]]]},
    ),
    Stack("DirectML-another order in the worker", "windows", torch_worker),
    onnx(
        "hybrid laptop",
        [ep(INTEL, 51222, "128 MB", "0"), ep(NVIDIA, 51223, "6009 MB")],
        [
            Expected("ready", INTEL, "integrated", 128 << 20, LUID),
            gpu(NVIDIA, memory_bytes=6009 << 20, hardware_id=LUID[:-1] + "7"),
        ],
        "control",
    ),
    onnx("memory with a unit", [ep(AMD, 51222, "8031 MB")], [gpu(AMD, memory_bytes=8031 << 20, hardware_id=LUID)]),
    onnx("a LUID in hexadecimal digits", [ep(AMD, "0xC816")], [gpu(AMD, hardware_id=LUID)]),  # type: ignore[arg-type]
    onnx(
        "another order, with LUIDs",
        [ep(ARC, 51222), ep(ARC, 51223)],
        [gpu(ARC, hardware_id=LUID), gpu(ARC, hardware_id=LUID[:-1] + "7")],
        prove=[ep(ARC, 51223), ep(ARC, 51222)],
    ),
    onnx("another order, with names", [ep(ARC), ep(AMD)], [gpu(ARC), gpu(AMD)], prove=[ep(AMD), ep(ARC)]),
    onnx(
        "another order, with memory",
        [ep(ARC, memory="16256 MB"), ep(ARC, memory="8064 MB")],
        [gpu(ARC, memory_bytes=16256 << 20), gpu(ARC, memory_bytes=8064 << 20)],
        prove=[ep(ARC, memory="8064 MB"), ep(ARC, memory="16256 MB")],
    ),
    onnx(
        "one less of two equal ones",
        [ep(ARC), ep(ARC)],
        [lost(ARC, "is gone: 1 devices instead of 2"), lost(ARC, "is gone: 1 devices instead of 2")],
        prove=[ep(ARC)],
    ),
    onnx(
        "another card with its LUID",
        [ep(ARC, 51222), ep(NVIDIA, 51223)],
        [lost(ARC), gpu(NVIDIA, hardware_id=LUID[:-1] + "7")],
        prove=[ep(AMD, 51222), ep(NVIDIA, 51223)],
    ),
    onnx("no LUID in the proof", [ep(ARC, 51222)], [gpu(ARC)], prove=[ep(ARC)]),
    onnx(
        "a renderer by its ids",
        [ep("Adattatore video", 51222, vendor_id=0x1414, device_id=0x8C)],
        [emulated("Adattatore video")],
    ),
    onnx(
        "none of that name in the proof",
        [ep(ARC), ep(NVIDIA)],
        [lost(ARC, "is gone"), gpu(NVIDIA)],
        prove=[ep(NVIDIA)],
    ),
    Stack("ONNX Runtime's DirectML-another order in the worker", "windows", onnx_worker),
    Stack("ONNX Runtime's DirectML-another card in the worker", "windows", onnx_worker_without_its_adapter),
]
