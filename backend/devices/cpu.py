"""The processor. Proved by a matrix product in ONNX Runtime against exact integer arithmetic."""

from __future__ import annotations

import os
import platform
import struct
import time
from pathlib import Path

from backend.devices import Backend, Found, WrongResult
from backend.machine import memory_bytes, memory_free_bytes
from backend.moments import utc_now
from backend.types import Proof

BACKEND = Backend(
    name="cpu",
    label="CPU",
    kind="cpu",
    rank=900,
    runtimes=("base",),
    aliases=("cpu:0",),
    engine_aliases=(
        ("onnx", "text", "onnx-genai"),
        ("onnx", "*", "onnxruntime"),
        ("CPUExecutionProvider", "text", "onnx-genai"),
        ("CPUExecutionProvider", "*", "onnxruntime"),
    ),
    indexed=False,
)
_SIZE = 96
_TOLERANCE = 1e-4


def enumerate_devices() -> list[Found]:
    """The one processor, with the memory that this process may use."""
    return [Found(0, _name(), "cpu", "cpu:0", memory_bytes(), memory_free_bytes())]


def prove(index: int) -> Proof:
    """Multiplies two 96 × 96 float32 matrices of small integers twice; every entry must equal the integer sum.

    Raises WrongResult with the error measured.
    """
    import numpy
    import onnxruntime

    left = [[(7 * row + 3 * column) % 17 - 8 for column in range(_SIZE)] for row in range(_SIZE)]
    right = [[(5 * row + 11 * column) % 13 - 6 for column in range(_SIZE)] for row in range(_SIZE)]
    columns = list(zip(*right, strict=True))
    reference = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]
    session = onnxruntime.InferenceSession(_matmul_model(), providers=["CPUExecutionProvider"])
    inputs = {"a": numpy.array(left, numpy.float32), "b": numpy.array(right, numpy.float32)}
    start = time.perf_counter()
    first, second = session.run(None, inputs)[0], session.run(None, inputs)[0]
    seconds = time.perf_counter() - start
    error = max(
        abs(float(x) - y) for got, want in zip(first, reference, strict=True) for x, y in zip(got, want, strict=True)
    )
    if not error <= _TOLERANCE:  # also when it is not a number
        raise WrongResult(f"a {_SIZE} × {_SIZE} matrix product was off by up to {error:g} (allowed {_TOLERANCE:g})")
    if not numpy.array_equal(first, second):
        raise WrongResult("the same matrix product gave two different results")
    versions = {"onnxruntime": onnxruntime.__version__, "numpy": numpy.__version__}
    return Proof("MatMul 96×96", "float32", error, _TOLERANCE, seconds, versions, utc_now(), os.getpid())


def _matmul_model() -> bytes:
    """An ONNX file with one MatMul node, as protobuf bytes (onnx.proto3): too small to need the onnx package."""

    def field(number: int, payload: bytes) -> bytes:
        return bytes([number << 3 | 2, len(payload)]) + payload

    def value(name: bytes) -> bytes:
        side = field(1, b"\x08" + struct.pack("B", _SIZE))
        tensor = b"\x08\x01" + field(2, side + side)  # elem_type FLOAT, shape 96 × 96
        return field(1, name) + field(2, field(1, tensor))

    node = field(1, b"a") + field(1, b"b") + field(2, b"c") + field(4, b"MatMul")
    graph = (
        field(1, node)
        + field(2, b"proof")
        + b"".join(field(n, value(v)) for n, v in ((11, b"a"), (11, b"b"), (12, b"c")))
    )
    return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x0d")  # IR version 8, operator set 13


def _name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
