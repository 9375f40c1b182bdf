"""The data types in which an ONNX graph computes, as a proof names them: float16, bfloat16, int8, int4.

A type counts where an operation computes in it. A tensor that is only stored in it, since every operation that reads it
moves or casts it, does not. Graphs inside of nodes are read too. Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from backend.common.errors import ModelBroken
from backend.common.files import open_regular_file
from backend.common.formats.onnx.validation import integer, read_onnx, text
from backend.common.formats.protobuf import fields

_HALF = {10: "float16", 16: "bfloat16"}  # by number of TensorProto.DataType
# Operations that copy numbers as they are.
_MOVES = frozenset(
    "Concat Expand Flatten Gather GatherElements GatherND Identity Reshape Slice Split Squeeze Transpose "
    "Unsqueeze".split()
)
# Products of 8-bit integers, and what quantizes their inputs: ONNX's and those of ONNX Runtime (com.microsoft).
_INT8 = re.compile(r"QLinear\w+|\w+Integer|MatMulIntegerToFloat|DynamicQuantize\w+|QuantizeLinear|QGemm|QAttention")
_BLOCK_BITS = {4: "int4", 8: "int8"}


@dataclass
class _Node:
    operation: str
    inputs: list[str]
    outputs: list[str]
    numbers: dict[str, int] = field(default_factory=dict)  # integer attributes by name
    constant: int = 0  # the type of a tensor attribute
    graphs: list[slice] = field(default_factory=list)


def data_types(path: Path) -> tuple[str, ...]:
    """Return the types beyond float32, sorted. Raises ModelBroken."""
    read_onnx(path)
    facts = path.stat()
    return _data_types(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=64)
def _data_types(path: Path, size: int, mtime_ns: int) -> tuple[str, ...]:
    with open_regular_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            found = _Reader(data)
            for number, value in fields(data, 0, len(data)):
                if number == 7 and isinstance(value, slice):  # protobuf merges repeated messages
                    found.read(value)
            return tuple(sorted(found.needed))
        except (IndexError, ValueError, RecursionError):
            remedy = "Delete the file and download it again from its source."
            raise ModelBroken(f"{path.name} is not an ONNX file, or is truncated.", remedy) from None


class _Reader:
    """Reads a graph and those inside of it, which see its names."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._half: dict[str, str] = {}  # values in 16 bits, by name
        self.needed: set[str] = set()

    def read(self, graph: slice) -> None:
        """Add what a graph needs."""
        nodes: list[slice] = []
        for number, value in fields(self._data, graph.start, graph.stop):
            if not isinstance(value, slice):
                continue
            if number == 1:
                nodes.append(value)
            elif number == 5:
                self._note(*self._tensor(value))
            elif number in (11, 12, 13):
                self._note(*self._value(value))
        for where in nodes:
            node = self._node(where)
            self._judge(node)
            for inner in node.graphs:
                self.read(inner)

    def _judge(self, node: _Node) -> None:
        name = node.operation
        if name in ("Cast", "Constant"):
            for output in node.outputs:
                self._note(output, node.numbers.get("to", 0) if name == "Cast" else node.constant)
        elif name in _MOVES:
            moved = next((self._half[each] for each in node.inputs if each in self._half), None)
            self._half.update(dict.fromkeys(node.outputs, moved) if moved else {})
        else:
            self.needed |= {self._half[each] for each in (*node.inputs, *node.outputs) if each in self._half}
            if _INT8.fullmatch(name):
                self.needed.add("int8")
            elif name == "MatMulNBits" and (blocks := _BLOCK_BITS.get(node.numbers.get("bits", 4))):
                self.needed.add(blocks)

    def _note(self, name: str, kind: int) -> None:
        if kind in _HALF:
            self._half[name] = _HALF[kind]

    def _node(self, where: slice) -> _Node:
        node = _Node("", [], [])
        for number, value in fields(self._data, where.start, where.stop):
            if number in (1, 2):
                (node.inputs if number == 1 else node.outputs).append(text(self._data, value))
            elif number == 4:
                node.operation = text(self._data, value)
            elif number == 5 and isinstance(value, slice):
                self._attribute(node, value)
        return node

    def _attribute(self, node: _Node, where: slice) -> None:
        name, number_ = "", 0
        for number, value in fields(self._data, where.start, where.stop):
            if number == 1:
                name = text(self._data, value)
            elif number == 3:
                number_ = integer(value)
            elif number == 5 and isinstance(value, slice):
                node.constant = self._tensor(value)[1]
            elif number in (6, 11) and isinstance(value, slice):
                node.graphs.append(value)
        node.numbers[name] = number_

    def _tensor(self, where: slice) -> tuple[str, int]:
        name, kind = "", 0
        for number, value in fields(self._data, where.start, where.stop):
            if number == 8:
                name = text(self._data, value)
            elif number == 2:
                kind = integer(value)
        return name, kind

    def _value(self, where: slice) -> tuple[str, int]:
        facts = dict(fields(self._data, where.start, where.stop))
        return text(self._data, facts.get(1)), next(self._elements(facts.get(2)), 0)

    def _elements(self, kind: int | slice | None) -> Iterator[int]:
        """Yield the element type of a TypeProto, if it is a tensor."""
        for number, value in fields(self._data, kind.start, kind.stop) if isinstance(kind, slice) else ():
            if number == 1 and isinstance(value, slice):
                yield from (integer(each) for at, each in fields(self._data, value.start, value.stop) if at == 1)
