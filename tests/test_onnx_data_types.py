"""The data types in which an ONNX file computes, and the refusal where the proof found one unusable."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import ModelBroken, ModelIncompatible
from backend.common.formats.onnx.data_types import data_types
from backend.common.formats.onnx.writer import ELEMENT_TYPES, Node, Value, Weight, write
from backend.common.types import Device, Proof
from backend.scheduling.worker import WorkerKey
from backend.scheduling.worker_pool import WorkerPool
from tests.faulty import faulty

FLOAT, HALF = ELEMENT_TYPES["float32"], ELEMENT_TYPES["float16"]
PROOF = Proof("MatMul", "float32", 0.0, 1e-4, 0.1, {}, "2026-01-01T00:00:00Z", 1)
WRONG = "float16 results are wrong on this device (MatMul float16 was off by up to 3)"


def message(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2, len(content))) + content


def half(name: str) -> Weight:
    return Weight(name, "float16", [2, 2], bytes(8))


def model(*nodes: Node, dtype: str = "float32", weights: tuple[Weight, ...] = (), inner: bytes = b"") -> bytes:
    """Return a model of these nodes from `x` to `y`; `inner` is appended to its graph."""
    content = write("g", nodes, [Value("x", dtype, [2, 2])], [Value("y", dtype, [2, 2])], weights)
    return content + message(7, inner) if inner else content


def operation(name: str, *inputs: str, domain: str = "", **numbers: int) -> Node:
    return Node(name, inputs or ["x", "w"], ["y"], numbers, domain)


SHORT = message(1, message(1, b"h") + message(1, b"h") + message(2, b"z") + message(4, b"MatMul"))  # h: float16
CASES = {
    "float32": (model(operation("MatMul")), ()),
    "float16": (model(operation("MatMul"), dtype="float16", weights=(half("w"),)), ("float16",)),
    "bfloat16": (model(operation("MatMul"), dtype="bfloat16"), ("bfloat16",)),
    "weights stored in float16": (
        model(Node("Cast", ["w"], ["v"], {"to": FLOAT}), operation("MatMul", "x", "v"), weights=(half("w"),)),
        (),
    ),
    "weights gathered in float16, then cast": (
        model(Node("Gather", ["w", "i"], ["g"]), Node("Cast", ["g"], ["y"], {"to": FLOAT}), weights=(half("w"),)),
        (),
    ),
    "weights gathered in float16, then used": (
        model(Node("Gather", ["w", "i"], ["g"]), operation("Add", "g", "g"), weights=(half("w"),)),
        ("float16",),
    ),
    "cast to float16 inside": (
        model(
            Node("Cast", ["x"], ["a"], {"to": HALF}),
            Node("MatMul", ["a", "a"], ["b"]),
            Node("Cast", ["b"], ["y"], {"to": FLOAT}),
        ),
        ("float16",),
    ),
    "a constant in float16": (
        model(
            operation("Relu", "x"),
            inner=message(
                1,
                message(2, b"h") + message(4, b"Constant") + message(5, message(1, b"value") + message(5, b"\x10\x0a")),
            )
            + SHORT,
        ),
        ("float16",),
    ),
    "a branch in float16": (
        model(
            Node("Cast", ["x"], ["h"], {"to": HALF}),
            operation("Relu", "x"),
            inner=message(1, message(4, b"If") + message(5, message(1, b"then_branch") + message(6, SHORT))),
        ),
        ("float16",),
    ),
    **{
        name: (model(operation(name, domain=domain)), ("int8",))
        for name, domain in [
            *[(each, "") for each in ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")],
            *[(each, "") for each in ("QuantizeLinear", "DynamicQuantizeLinear")],
            *[(each, "com.microsoft") for each in ("QGemm", "QAttention", "MatMulIntegerToFloat", "QLinearAdd")],
            *[(each, "com.microsoft") for each in ("DynamicQuantizeMatMul", "DynamicQuantizeLSTM")],
        ]
    },
    "weights in 8 bits alone": (model(Node("DequantizeLinear", ["w", "s"], ["v"]), operation("MatMul", "x", "v")), ()),
    "4-bit blocks": (model(operation("MatMulNBits", domain="com.microsoft", bits=4)), ("int4",)),
    "8-bit blocks": (model(operation("MatMulNBits", domain="com.microsoft", bits=8)), ("int8",)),
    "2-bit blocks, which no proof checks": (model(operation("MatMulNBits", domain="com.microsoft", bits=2)), ()),
    "two types": (
        model(operation("MatMulNBits", domain="com.microsoft", bits=4), dtype="float16"),
        ("float16", "int4"),
    ),
}


@pytest.mark.parametrize(("content", "types"), CASES.values(), ids=CASES)
def test_a_file_names_the_types_in_which_it_computes(content: bytes, types: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert data_types(tmp_path / "m.onnx") == types


@pytest.mark.parametrize("end", [1, 5, 40, -3])
def test_a_damaged_file_is_broken(end: int, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(CASES["two types"][0][:end])
    with pytest.raises(ModelBroken):
        data_types(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("case", "unusable", "is_refused"),
    [
        ("float16", {"float16": WRONG}, True),
        ("float16", {"bfloat16": WRONG, "int4": WRONG}, False),
        ("float32", {"float16": WRONG}, False),
        ("weights stored in float16", {"float16": WRONG}, False),
        ("QLinearMatMul", {"int8": WRONG}, True),
        ("4-bit blocks", {"int4": WRONG}, True),
        ("4-bit blocks", {}, False),
    ],
)
def test_a_model_is_refused_before_it_is_loaded(
    case: str, unusable: dict[str, str], is_refused: bool, tmp_path: Path
) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(CASES[case][0])
    card = Device("onnx-cuda:0", "A card", "onnx-cuda", "gpu", "ready", proof=replace(PROOF, unusable=unusable))
    started: list[str] = []

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        started.append(arguments[0])
        return faulty("ok")(python, arguments)

    async def play() -> None:
        pool = WorkerPool(load_settings({}, {}), {"base": "python"}, spawn, lambda: None)
        try:
            held, _ = await pool.acquire(card.id, card, WorkerKey(card.id, "base", "onnxruntime", "m"), file)
            pool.release(held)
        finally:
            await pool.close("test ended")

    if is_refused:
        with pytest.raises(ModelIncompatible, match=r"m\.onnx computes in .*: float16 results are wrong on this dev"):
            asyncio.run(play())
    else:
        asyncio.run(play())
    assert bool(started) != is_refused
