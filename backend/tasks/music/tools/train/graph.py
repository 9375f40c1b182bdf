"""Builder of the ONNX graphs of one decode step. Their weights are external data in weights.safetensors.

All tensors are floats (embeddings are looked up on the host), so that any execution provider can run the complete
graph. There are two kinds of KV cache, both with static shapes if the dimensions `batch` and `room` are fixed:

- "host": the cache is an input; only the new token's keys and values are outputs, which the caller stores.
- "device": the outputs are the caches including the new token; the caller binds them, so that they stay on the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, StringStringEntryProto, TensorProto, ValueInfoProto, checker, helper, save

from backend.tasks.music.network import EPSILON, Shape, graph_name
from backend.tasks.music.tokens import VOCABULARY
from backend.tasks.music.weights import read_header, read_weights

OPSET = 17
IR_VERSION = 8


class _Graph:
    def __init__(self, shape: Shape, half: bool) -> None:
        self.shape = shape
        self.half = half
        self.kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.count = 0

    def add(self, op: str, inputs: list[str], outputs: int = 1, name: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its first output."""
        self.count += 1
        name = name or f"{op.lower()}_{self.count}"
        names = [name, *(f"{name}.{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"{op}_{self.count}", **attributes))
        return name

    def constant(self, value: Any, integer: bool = False) -> str:
        """Add a constant tensor and return its name."""
        self.count += 1
        name = f"constant_{self.count}"
        if integer:
            array = np.array(value, np.int64)
            self.constants.append(helper.make_tensor(name, TensorProto.INT64, array.shape, array.ravel().tolist()))
        else:
            array = np.array(value, np.float16 if self.half else np.float32)
            self.constants.append(helper.make_tensor(name, self.kind, array.shape, array.tobytes(), raw=True))
        return name

    def linear(self, x: str, name: str) -> str:
        return self.add("Add", [self.add("MatMul", [x, name]), f"{name}.shift"])

    def norm(self, x: str, name: str) -> str:
        return self.add("LayerNormalization", [x, f"{name}.scale", f"{name}.shift"], axis=-1, epsilon=EPSILON)

    def gelu(self, x: str) -> str:
        erf = self.add("Erf", [self.add("Div", [x, self.constant(2**0.5)])])
        return self.add("Mul", [self.add("Mul", [x, self.add("Add", [erf, self.constant(1.0)])]), self.constant(0.5)])

    def rotate(self, x: str) -> str:
        """Add the rotary embedding of x [batch, heads, 1, head] with the inputs cos and sin [head / 2]."""
        half = self.shape.head // 2
        first = self.add("Split", [x, self.constant([half, half], integer=True)], outputs=2, axis=-1)
        second = f"{first}.1"
        low = self.add("Sub", [self.add("Mul", [first, "cos"]), self.add("Mul", [second, "sin"])])
        high = self.add("Add", [self.add("Mul", [second, "cos"]), self.add("Mul", [first, "sin"])])
        return self.add("Concat", [low, high], axis=-1)


def _attention(graph: _Graph, x: str, layer: int, device: bool) -> str:
    shape = graph.shape
    joined = graph.linear(graph.norm(x, f"{layer}.norm1"), f"{layer}.qkv")
    parts = graph.add("Split", [joined, graph.constant([shape.width] * 3, integer=True)], outputs=3, axis=-1)
    heads = graph.constant([-1, shape.heads, 1, shape.head], integer=True)
    query, key, value = (graph.add("Reshape", [name, heads]) for name in (parts, f"{parts}.1", f"{parts}.2"))
    query = graph.add("Mul", [graph.rotate(query), graph.constant(shape.head**-0.5)])
    key_column = graph.add(
        "Reshape", [graph.rotate(key), graph.constant([-1, shape.heads, shape.head, 1], integer=True)]
    )
    if device:
        # `now` is 1 at the new token's position and 0 elsewhere, so a blend replaces a scatter.
        row = graph.add("Unsqueeze", ["now", graph.constant([0], integer=True)])
        column = graph.add("Unsqueeze", ["now", graph.constant([1], integer=True)])
        keys = _blend(graph, f"key.{layer}", key_column, row, f"new_key.{layer}")
        values = _blend(graph, f"value.{layer}", value, column, f"new_value.{layer}")
        scores = graph.add("Add", [graph.add("MatMul", [query, keys]), "mask"])
        mixed = graph.add("MatMul", [graph.add("Softmax", [scores], axis=-1), values])
    else:
        graph.add("Identity", [key_column], name=f"new_key.{layer}")
        graph.add("Identity", [value], name=f"new_value.{layer}")
        past_scores = graph.add("Add", [graph.add("MatMul", [query, f"key.{layer}"]), "mask"])
        own_score = graph.add("MatMul", [query, key_column])
        shares = graph.add("Softmax", [graph.add("Concat", [own_score, past_scores], axis=-1)], axis=-1)
        first, last = graph.constant([1], integer=True), graph.constant([2**31 - 1], integer=True)
        axis = graph.constant([3], integer=True)
        own_share = graph.add("Slice", [shares, graph.constant([0], integer=True), first, axis])
        rest = graph.add("MatMul", [graph.add("Slice", [shares, first, last, axis]), f"value.{layer}"])
        mixed = graph.add("Add", [graph.add("Mul", [own_share, value]), rest])
    flat = graph.add("Reshape", [mixed, graph.constant([-1, shape.width], integer=True)])
    return graph.add("Add", [x, graph.linear(flat, f"{layer}.out")])


def _blend(graph: _Graph, cache: str, new: str, now: str, name: str) -> str:
    kept = graph.add("Mul", [cache, graph.add("Sub", [graph.constant(1.0), now])])
    return graph.add("Add", [kept, graph.add("Mul", [new, now])], name=name)


def build(weights_file: Path, half: bool, device: bool) -> ModelProto:
    """Return one of the four graphs: float16 or float32, with the KV cache on the device or on the host."""
    shape = read_weights(weights_file).shape
    graph = _Graph(shape, half)
    tensors = _weights(graph, weights_file)
    x = graph.add("Identity", ["x"])
    for layer in range(shape.layers):
        x = _attention(graph, x, layer, device)
        hidden = graph.gelu(graph.linear(graph.norm(x, f"{layer}.norm2"), f"{layer}.up"))
        x = graph.add("Add", [x, graph.linear(hidden, f"{layer}.down")])
    logits = graph.linear(graph.norm(x, "norm"), "head")
    graph.add("Cast", [logits], name="logits", to=TensorProto.FLOAT)
    inputs: list[tuple[str, list[Any]]] = [
        ("x", ["batch", shape.width]),
        ("cos", [shape.head // 2]),
        ("sin", [shape.head // 2]),
        ("mask", ["room"]),
    ]
    inputs += [("now", ["room"])] if device else []
    caches: list[tuple[str, list[Any]]] = []
    for layer in range(shape.layers):
        caches += [(f"key.{layer}", ["batch", shape.heads, shape.head, "room"])]
        caches += [(f"value.{layer}", ["batch", shape.heads, "room", shape.head])]
    new_caches = [
        (f"new_{name}", size if device else [1 if part == "room" else part for part in size]) for name, size in caches
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", VOCABULARY])]
    outputs += [_value(graph, name, size) for name, size in new_caches]
    graph_proto = helper.make_graph(
        graph.nodes,
        "one step of the folk-tune model",
        [_value(graph, name, size) for name, size in (*inputs, *caches)],
        outputs,
        initializer=[*tensors, *graph.constants],
    )
    model = helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return model


def _value(graph: _Graph, name: str, size: list[Any]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, graph.kind, size)


def _weights(graph: _Graph, file: Path) -> list[TensorProto]:
    """Return the weights as external data. The float32 graph casts them at its start."""
    header, start = read_header(file)
    header.pop("__metadata__")
    tensors = []
    for name, each in header.items():
        if name == "token" or name.startswith("side."):
            continue
        tensor = TensorProto(name=name if graph.half else f"{name}.half", data_type=TensorProto.FLOAT16)
        tensor.dims.extend(each["shape"])
        tensor.data_location = TensorProto.EXTERNAL
        first, last = each["data_offsets"]
        for key, value in (("location", file.name), ("offset", start + first), ("length", last - first)):
            tensor.external_data.append(StringStringEntryProto(key=key, value=str(value)))
        tensors.append(tensor)
        if not graph.half:
            graph.add("Cast", [f"{name}.half"], name=name, to=TensorProto.FLOAT)
    return tensors


def write_graphs(weights_file: Path) -> list[Path]:
    """Write the four graphs to the folder of the weights, and return their paths."""
    paths = []
    for half in (False, True):
        for device in (False, True):
            path = weights_file.parent / graph_name(half, device)
            save(build(weights_file, half, device), str(path))
            checker.check_model(str(path))
            paths.append(path)
    return paths
