"""Inputs, outputs, operators and weights of an ONNX graph, parsed from the file without a library.

Field numbers are those of onnx.proto3. `validation.py` checks that the file is complete and finds its external data.
"""

from __future__ import annotations

import math
import mmap
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from backend.common.errors import ModelBroken
from backend.common.files import open_regular_file
from backend.common.formats.onnx.validation import integer, read_onnx, text
from backend.common.formats.protobuf import fields, varint
from backend.common.types import JsonObject

# By number of TensorProto.DataType: NumPy's name, otherwise ONNX's, and bits per element.
_TYPES = {
    **{1: ("float32", 32), 2: ("uint8", 8), 3: ("int8", 8), 4: ("uint16", 16), 5: ("int16", 16), 6: ("int32", 32)},
    **{7: ("int64", 64), 8: ("string", 128), 9: ("bool", 8), 10: ("float16", 16), 11: ("float64", 64)},
    **{12: ("uint32", 32), 13: ("uint64", 64), 14: ("complex64", 64), 15: ("complex128", 128), 16: ("bfloat16", 16)},
    **{17: ("float8e4m3fn", 8), 18: ("float8e4m3fnuz", 8), 19: ("float8e5m2", 8), 20: ("float8e5m2fnuz", 8)},
    **{
        21: ("uint4", 4),
        22: ("int4", 4),
        23: ("float4e2m1", 4),
        24: ("float8e8m0", 8),
        25: ("uint2", 2),
        26: ("int2", 2),
    },
}
_OFFICIAL = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft")


@dataclass(frozen=True)
class Slot:
    """An input or output: NumPy's name of its type, and its dimensions: a number, a symbolic name, or None.

    `shape` is None if the number of dimensions is unknown. `kind` is nearly always `tensor`.
    """

    name: str
    type: str | None
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"


@dataclass(frozen=True)
class OnnxGraph:
    """The facts of a graph. `weight_bytes`: size of its constant tensors, in the file and in external files."""

    ir_version: int
    producer: str
    operator_sets: dict[str, int]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    operators: dict[str, int]
    custom_domains: tuple[str, ...]
    external: tuple[tuple[str, int], ...]
    weight_bytes: int

    def as_data(self) -> JsonObject:
        """Return the facts as plain data for JSON."""
        return asdict(self)


def read_graph(path: Path) -> OnnxGraph:
    """Parse a file and check its external data. Raises ModelBroken."""
    read_onnx(path)
    facts = path.stat()
    return _read(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, size: int, mtime_ns: int) -> OnnxGraph:
    with open_regular_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _graph(data, read_onnx(path).external)
        except (IndexError, ValueError, RecursionError):
            remedy = "Delete the file and download it again from its source."
            raise ModelBroken(f"{path.name} is not an ONNX file, or is truncated.", remedy) from None


def _graph(data: mmap.mmap, external: tuple[tuple[str, int], ...]) -> OnnxGraph:
    model = list(fields(data, 0, len(data)))
    graph = next(value for number, value in model if number == 7 and isinstance(value, slice))
    sets: dict[str, int] = {}
    for number, value in model:
        if number == 8 and isinstance(value, slice):
            named = dict(fields(data, value.start, value.stop))
            sets[text(data, named.get(1)) or "ai.onnx"] = integer(named.get(2))
    operators: Counter[str] = Counter()
    inputs: list[Slot] = []
    outputs: list[Slot] = []
    weights, weight_bytes = set(), 0
    for number, value in fields(data, graph.start, graph.stop):
        if not isinstance(value, slice):
            continue
        if number == 1:
            node = dict(fields(data, value.start, value.stop))
            domain, name = text(data, node.get(7)), text(data, node.get(4))
            operators[name if domain in _OFFICIAL[:2] else f"{domain}::{name}"] += 1
        elif number == 5:
            name, size_bytes = _weight(data, value)
            weights.add(name)
            weight_bytes += size_bytes
        elif number in (11, 12):
            (inputs if number == 11 else outputs).append(_slot(data, value))
    facts = dict(model)
    return OnnxGraph(
        ir_version=integer(facts.get(1)),
        producer=" ".join(filter(None, (text(data, facts.get(2)), text(data, facts.get(3))))),
        operator_sets=sets,
        inputs=tuple(slot for slot in inputs if slot.name not in weights),
        outputs=tuple(outputs),
        operators=dict(operators.most_common()),
        custom_domains=tuple(sorted(domain for domain in sets if domain not in _OFFICIAL)),
        external=external,
        weight_bytes=weight_bytes,
    )


def _weight(data: mmap.mmap, where: slice) -> tuple[str, int]:
    """Return name and bytes of a constant tensor."""
    sides: list[int] = []
    name, kind = "", 0
    for number, value in fields(data, where.start, where.stop):
        if number == 1:
            sides += _numbers(data, value)
        elif number == 2:
            kind = integer(value)
        elif number == 8:
            name = text(data, value)
    # A negative dimension is a varint of 2^63 or more.
    elements = math.prod(side if side < 1 << 63 else 0 for side in sides)
    return name, elements * _TYPES.get(kind, ("", 0))[1] // 8


def _numbers(data: mmap.mmap, value: int | slice) -> list[int]:
    """Parse integers, packed into one field or single."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], value.start
    while at < value.stop:
        number, at = varint(data, at)
        numbers.append(number)
    return numbers


def _slot(data: mmap.mmap, where: slice) -> Slot:
    facts = dict(fields(data, where.start, where.stop))
    name, kind = text(data, facts.get(1)), facts.get(2)
    types = dict(fields(data, kind.start, kind.stop)) if isinstance(kind, slice) else {}
    tensor = types.get(1)
    if not isinstance(tensor, slice):
        kinds = {4: "sequence", 5: "map", 8: "sparse_tensor", 9: "optional"}
        return Slot(name, None, None, next((kinds[number] for number in types if number in kinds), "unknown"))
    element, shape = 0, None
    for number, value in fields(data, tensor.start, tensor.stop):
        if number == 1:
            element = integer(value)
        elif number == 2 and isinstance(value, slice):
            shape = tuple(_side(data, side) for each, side in fields(data, value.start, value.stop) if each == 1)
    return Slot(name, _TYPES.get(element, (None, 0))[0], shape)


def _side(data: mmap.mmap, where: int | slice) -> int | str | None:
    if not isinstance(where, slice):
        return None
    facts = dict(fields(data, where.start, where.stop))
    size = facts.get(1)
    if isinstance(size, int) and size < 1 << 63:
        return size
    return text(data, facts.get(2)) or None


@dataclass(frozen=True)
class NodeOutputs:
    """A node of the top-level graph, in file order, with the names of its outputs."""

    name: str
    operator: str
    outputs: tuple[str, ...]


def node_outputs(path: Path) -> list[NodeOutputs]:
    """Return all nodes of the top-level graph, with their outputs. Raises ModelBroken."""
    read_onnx(path)
    nodes = []
    with open_regular_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        graph = dict(fields(data, 0, len(data)))[7]
        for number, value in fields(data, graph.start, graph.stop) if isinstance(graph, slice) else ():
            if number == 1 and isinstance(value, slice):
                facts = list(fields(data, value.start, value.stop))
                named = dict(facts)
                outputs = tuple(filter(None, (text(data, each) for at, each in facts if at == 2)))
                nodes.append(NodeOutputs(text(data, named.get(3)), text(data, named.get(4)), outputs))
    return nodes


def with_outputs(path: Path, names: list[str]) -> bytes:
    """Return the model with additional outputs. They are appended: protobuf merges repeated messages."""
    more = b"".join(_message(12, _message(1, name.encode())) for name in names)
    return path.read_bytes() + _message(7, more)


def _message(number: int, content: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
