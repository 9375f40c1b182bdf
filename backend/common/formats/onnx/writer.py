"""Write ONNX files as protobuf bytes (onnx.proto3), without the onnx package.

Field numbers are those of onnx.proto3: ModelProto 1 ir_version, 7 graph, 8 opset_import; GraphProto 1 node, 2 name,
5 initializer, 11 input, 12 output; NodeProto 1 input, 2 output, 3 name, 4 op_type, 5 attribute, 7 domain;
AttributeProto 1 name, 2 f, 3 i, 8 ints, 20 type; TensorProto 1 dims, 2 data_type, 8 name, 9 raw_data, 13 external_data,
14 data_location; OperatorSetIdProto 1 domain, 2 version.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ELEMENT_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10, "bfloat16": 16}
_IR_VERSION, _OPERATOR_SET = 8, 13
_FLOAT, _INT, _INTS = 1, 2, 7
_EXTERNAL = 1
_CUSTOM_VERSION = 1  # of every operator set besides ONNX's own


@dataclass(frozen=True)
class Value:
    """An input or output: its element type and shape. A dimension may be a symbolic name."""

    name: str
    dtype: str
    shape: Sequence[int | str]


@dataclass(frozen=True)
class Outside:
    """External data: `length` bytes from `offset` in a file next to the graph."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Weight:
    """A constant tensor: its bytes, little-endian, or their place in an external file."""

    name: str
    dtype: str
    shape: Sequence[int]
    data: bytes | Outside


@dataclass(frozen=True)
class Node:
    """One operation. `domain`: optional, the operator set that defines it. Default: ONNX's own. `name`: optional."""

    operation: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, int | float | Sequence[int]] = field(default_factory=dict)
    domain: str = ""
    name: str = ""


def write(
    name: str, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], weights: Sequence[Weight] = ()
) -> bytes:
    """Return a complete model. The nodes must be in topological order."""
    graph = b"".join(_field(1, _node(node)) for node in nodes) + _text(2, name)
    graph += b"".join(_field(5, _tensor(weight)) for weight in weights)
    graph += b"".join(_field(11, _value(value)) for value in inputs)
    graph += b"".join(_field(12, _value(value)) for value in outputs)
    versions = {"": _OPERATOR_SET, **{node.domain: _CUSTOM_VERSION for node in nodes if node.domain}}
    sets = b"".join(_field(8, _text(1, domain) + _number(2, version)) for domain, version in versions.items())
    return _number(1, _IR_VERSION) + _field(7, graph) + sets


def _node(node: Node) -> bytes:
    names = b"".join(_text(1, name) for name in node.inputs) + b"".join(_text(2, name) for name in node.outputs)
    attributes = b"".join(_field(5, _attribute(name, value)) for name, value in node.attributes.items())
    optional = b"".join(_text(number, text) for number, text in ((3, node.name), (7, node.domain)) if text)
    return names + _text(4, node.operation) + attributes + optional


def _tensor(weight: Weight) -> bytes:
    out = b"".join(_number(1, side) for side in weight.shape) + _number(2, ELEMENT_TYPES[weight.dtype])
    out += _text(8, weight.name)
    if isinstance(weight.data, bytes):
        return out + _field(9, weight.data)
    place = {"location": weight.data.file, "offset": str(weight.data.offset), "length": str(weight.data.length)}
    return (
        out
        + b"".join(_field(13, _text(1, key) + _text(2, text)) for key, text in place.items())
        + _number(14, _EXTERNAL)
    )


def _value(value: Value) -> bytes:
    sides = (_text(2, side) if isinstance(side, str) else _number(1, side) for side in value.shape)
    shape = b"".join(_field(1, side) for side in sides)
    tensor = _number(1, ELEMENT_TYPES[value.dtype]) + _field(2, shape)
    return _text(1, value.name) + _field(2, _field(1, tensor))


def _attribute(name: str, value: int | float | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, _INT)
    if isinstance(value, float):
        return _text(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, _FLOAT)
    return _text(1, name) + b"".join(_number(8, number) for number in value) + _number(20, _INTS)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative number is its two's complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
