"""ONNX files of one node each, as protobuf bytes (onnx.proto3): too small to need the onnx package.

Field numbers are those of onnx.proto3: ModelProto 1 ir_version, 7 graph, 8 opset_import; GraphProto 1 node, 2 name,
11 input, 12 output; NodeProto 1 input, 2 output, 4 op_type, 5 attribute; AttributeProto 1 name, 3 i, 8 ints, 20 type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ELEMENT_TYPES = {"float32": 1, "int64": 7, "float16": 10}
_IR_VERSION, _OPERATOR_SET = 8, 13
_INT, _INTS = 2, 7


@dataclass(frozen=True)
class Value:
    """An input or output: its element type and shape."""

    name: str
    dtype: str
    shape: Sequence[int]


def one_node(
    operation: str, inputs: Sequence[Value], output: Value, attributes: Mapping[str, int | Sequence[int]] | None = None
) -> bytes:
    """A model that is one operation."""
    node = b"".join(_text(1, value.name) for value in inputs) + _text(2, output.name) + _text(4, operation)
    node += b"".join(_field(5, _attribute(name, value)) for name, value in (attributes or {}).items())
    graph = _field(1, node) + _text(2, "proof")
    graph += b"".join(_field(11, _value(value)) for value in inputs) + _field(12, _value(output))
    return _number(1, _IR_VERSION) + _field(7, graph) + _field(8, _text(1, "") + _number(2, _OPERATOR_SET))


def _value(value: Value) -> bytes:
    shape = b"".join(_field(1, _number(1, side)) for side in value.shape)
    tensor = _number(1, ELEMENT_TYPES[value.dtype]) + _field(2, shape)
    return _text(1, value.name) + _field(2, _field(1, tensor))


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, _INT)
    return _text(1, name) + b"".join(_number(8, number) for number in value) + _number(20, _INTS)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
