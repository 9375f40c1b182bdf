"""Operations of ONNX Runtime as test models: their nodes, constants and random inputs, each with the right result.

They are what the engines' models contain: products with constant factors, norms, softmax, attention with grouped keys,
and the quantized products of ONNX Runtime's converters (`com.microsoft`, contrib operators). Inputs are fractions with
few bits, so that every data type holds them exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from backend.common.formats.onnx.writer import ELEMENT_TYPES, Node, Value, Weight, write
from backend.devices._mechanisms.reference_math import Reference

# Takes the flat result. Returns the entries to compare, and what they should be.
Expectation = Callable[["array[float]"], tuple[Sequence[float], Reference]]


@dataclass(frozen=True)
class Sample:
    """Inputs of an operation, as nested lists or arrays by name, and the expectation of its result."""

    inputs: dict[str, Any]
    expect: Expectation


@dataclass(frozen=True)
class Operation:
    """One operation to check. `dtype`: the data type in the proof's record. `new_sample` returns other inputs."""

    name: str
    dtype: str
    nodes: Sequence[Node]
    inputs: Sequence[Value]
    outputs: Sequence[Value]  # the first is compared
    new_sample: Callable[[], Sample]
    weights: Sequence[Weight] = field(default_factory=list)
    samples: int = 2  # number of different inputs to check it with
    required: bool = True  # whether engines need it, if they need the data type

    @property
    def result_name(self) -> str:
        """The name of the compared output in a model."""
        return _outside(self._named(self.outputs[0])).name

    def arrays(self, sample: Sample) -> dict[str, Any]:
        """Return the sample's inputs as NumPy arrays, by their names in a model."""
        import numpy

        values = {value.name: _outside(self._named(value)) for value in self.inputs}
        return {
            values[name].name: numpy.array(entries, values[name].dtype).reshape(values[name].shape)
            for name, entries in sample.inputs.items()
        }

    def parts(self) -> tuple[list[Node], list[Value], list[Value], list[Weight]]:
        """Return nodes, inputs, outputs and weights for a model, with names that no other operation has.

        Inputs and outputs in bfloat16, which NumPy lacks, are float32 outside of the model.
        """
        inputs, outputs = ([self._named(value) for value in values] for values in (self.inputs, self.outputs))
        nodes = [Node("Cast", [_outside(value).name], [value.name], _CAST) for value in inputs if _is_short(value)]
        for node in self.nodes:
            taken, given = ([self._name(name) for name in names] for names in (node.inputs, node.outputs))
            nodes.append(Node(node.operation, taken, given, node.attributes, node.domain))
        nodes += [Node("Cast", [value.name], [_outside(value).name], _UNCAST) for value in outputs if _is_short(value)]
        nodes = [replace(node, name=self._name(str(number))) for number, node in enumerate(nodes)]
        weights = [replace(each, name=self._name(each.name)) for each in self.weights]
        return nodes, list(map(_outside, inputs)), list(map(_outside, outputs)), weights

    def _named(self, value: Value) -> Value:
        return replace(value, name=self._name(value.name))

    def _name(self, name: str) -> str:
        return f"{self.name}/{name}"

    @staticmethod
    def flat(result: Any) -> array[float]:
        """Return a NumPy array as a flat array of 32-bit floats."""
        numbers = array("f")
        numbers.frombytes(result.astype("=f4").tobytes())
        return numbers


_CAST, _UNCAST = {"to": ELEMENT_TYPES["bfloat16"]}, {"to": ELEMENT_TYPES["float32"]}


def model_of(operations: Sequence[Operation]) -> bytes:
    """Return a model of several operations that do not depend on each other."""
    parts = [operation.parts() for operation in operations]
    nodes, inputs, outputs, weights = (list(chain.from_iterable(each)) for each in zip(*parts, strict=True))
    return write("proof", nodes, inputs, outputs, weights)


def weight(name: str, dtype: str, shape: Sequence[int], values: Any) -> Weight:
    """Return a constant from nested lists."""
    import numpy

    if dtype == "bfloat16":  # the upper half of a float32: exact for numbers with few bits
        data = (numpy.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        data = numpy.array(values, numpy.dtype(dtype).newbyteorder("<")).tobytes()
    return Weight(name, dtype, shape, data)


def columns_of(rows: Sequence[Any]) -> Any:
    """Return a NumPy array whose columns are these rows."""
    import numpy

    return numpy.ascontiguousarray(numpy.array(rows).T)


def exactly(reference: Reference) -> Expectation:
    """Return the expectation that all entries match a reference."""
    return lambda got: (got, reference)


def _is_short(value: Value) -> bool:
    return value.dtype == "bfloat16"


def _outside(value: Value) -> Value:
    return Value(f"{value.name}.32", "float32", value.shape) if _is_short(value) else value
