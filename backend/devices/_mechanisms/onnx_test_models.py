"""ONNX models of one operation each, for proofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.common.formats.onnx.writer import ELEMENT_TYPES, Node, Value, write

__all__ = ["ELEMENT_TYPES", "Value", "one_node"]


def one_node(
    operation: str, inputs: Sequence[Value], output: Value, attributes: Mapping[str, int | Sequence[int]] | None = None
) -> bytes:
    """Return a model with one node."""
    node = Node(operation, [value.name for value in inputs], [output.name], dict(attributes or {}))
    return write("proof", [node], inputs, [output])
