"""Operations of ONNX Runtime as test models: their nodes, constants and random inputs, each with the right result.

They are what the engines' models contain: products with constant factors, norms, softmax, attention with grouped keys,
and the quantized products of ONNX Runtime's converters (`com.microsoft`, contrib operators). Inputs are fractions with
few bits, so that every data type holds them exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

    def model(self) -> bytes:
        """Return the model. Inputs and outputs in bfloat16, which NumPy lacks, are float32 outside of it."""
        short_inputs, short_outputs = (
            [value.name for value in values if _is_short(value)] for values in (self.inputs, self.outputs)
        )
        return write(
            "proof",
            [
                *(Node("Cast", [f"{name}.32"], [name], _CAST) for name in short_inputs),
                *self.nodes,
                *(Node("Cast", [name], [f"{name}.32"], _UNCAST) for name in short_outputs),
            ],
            [_outside(value) for value in self.inputs],
            [_outside(value) for value in self.outputs],
            self.weights,
        )

    def arrays(self, sample: Sample) -> dict[str, Any]:
        """Return the sample's inputs as NumPy arrays."""
        import numpy

        values = {value.name: _outside(value) for value in self.inputs}
        return {
            values[name].name: numpy.array(entries, values[name].dtype).reshape(values[name].shape)
            for name, entries in sample.inputs.items()
        }

    @staticmethod
    def flat(result: Any) -> array[float]:
        """Return a NumPy array as a flat array of 32-bit floats."""
        numbers = array("f")
        numbers.frombytes(result.astype("=f4").tobytes())
        return numbers


_CAST, _UNCAST = {"to": ELEMENT_TYPES["bfloat16"]}, {"to": ELEMENT_TYPES["float32"]}


def weight(name: str, dtype: str, shape: Sequence[int], values: Any) -> Weight:
    """Return a constant from nested lists."""
    import numpy

    if dtype == "bfloat16":  # the upper half of a float32: exact for numbers with few bits
        data = (numpy.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        data = numpy.array(values, numpy.dtype(dtype).newbyteorder("<")).tobytes()
    return Weight(name, dtype, shape, data)


def exactly(reference: Reference) -> Expectation:
    """Return the expectation that all entries match a reference."""
    return lambda got: (got, reference)


def _is_short(value: Value) -> bool:
    return value.dtype == "bfloat16"


def _outside(value: Value) -> Value:
    return Value(f"{value.name}.32", "float32", value.shape) if _is_short(value) else value
