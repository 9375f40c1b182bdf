"""The facts of ONNX graphs: what the writer writes is read back, and odd dimensions, names and tensors are bounded."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ModelBroken
from backend.common.formats.onnx.graph import NodeOutputs, Slot, node_outputs, read_graph, with_outputs
from backend.common.formats.onnx.validation import outside_files, read_onnx
from backend.common.formats.onnx.writer import Node, Outside, Value, Weight, write

X, Y = Value("x", "float32", ["batch", 4]), Value("y", "float32", ["batch", 3])
PRODUCT = Node("MatMul", ["x", "w"], ["y"])
WEIGHT = Weight("w", "float32", [4, 3], bytes(48))


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def graph_of(*parts: bytes) -> bytes:
    """Return a model of these parts of a graph."""
    return number(1, 8) + message(7, b"".join(parts)) + message(8, number(2, 17))


def test_a_written_model_is_read_back(tmp_path: Path) -> None:
    graph = read_graph(saved(tmp_path, write("tiny", [PRODUCT], [X], [Y], [WEIGHT])))
    assert graph.inputs == (Slot("x", "float32", ("batch", 4)),)
    assert graph.outputs == (Slot("y", "float32", ("batch", 3)),)
    assert (graph.operators, graph.weight_bytes, graph.external) == ({"MatMul": 1}, 48, ())
    assert graph.as_data()["inputs"][0]["shape"] == ("batch", 4)


def test_a_contrib_operator_has_its_domain_and_operator_set() -> None:
    model = write(
        "own", [Node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", name="one")], [X], [Y], [WEIGHT]
    )
    session = session_of(model)
    assert session.run(None, {"x": numpy.ones((2, 4), "f4")})[0].tolist() == [[0.0] * 3] * 2
    (part,) = session.get_provider_graph_assignment_info()
    assert [(node.name, node.op_type) for node in part.get_nodes()] == [("one", "FusedMatMul")]


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def test_a_weight_that_is_listed_as_an_input_is_not_asked_for(tmp_path: Path) -> None:
    listed = Value("w", "float32", [4, 3])
    graph = read_graph(saved(tmp_path, write("old style", [PRODUCT], [X, listed], [Y], [WEIGHT])))
    assert [slot.name for slot in graph.inputs] == ["x"]


def test_external_data_counts_as_weights_and_its_end_is_known(tmp_path: Path) -> None:
    weight = Weight("w", "float16", [4, 3], Outside("w.bin", 100, 24))
    path = saved(tmp_path, write("split", [PRODUCT], [X], [Y], [weight]))
    assert outside_files(path) == ["w.bin"]
    with pytest.raises(ModelBroken, match=r"needs the file w\.bin"):
        read_graph(path)
    (tmp_path / "w.bin").write_bytes(bytes(123))
    with pytest.raises(ModelBroken, match="123 bytes instead of 124"):
        read_graph(path)
    (tmp_path / "w.bin").write_bytes(bytes(124))
    graph = read_graph(path)
    assert (graph.weight_bytes, graph.external) == (24, (("w.bin", 124),))


@pytest.mark.parametrize("name", ["NUL", "aux.bin", "data/COM1", "lpt³.onnx_data"])
def test_external_data_in_a_windows_device_is_refused_on_every_system(tmp_path: Path, name: str) -> None:
    weight = Weight("w", "float32", [4, 3], Outside(name, 0, 48))
    with pytest.raises(ModelBroken, match="outside its folder"):
        read_onnx(saved(tmp_path, write("device", [PRODUCT], [X], [Y], [weight])))


def test_nodes_are_listed_in_order_with_all_their_outputs(tmp_path: Path) -> None:
    nodes = [Node("Split", ["x"], ["a", "b"], {"axis": -1}), Node("Add", ["a", "b"], ["y"])]
    path = saved(tmp_path, write("two", nodes, [X], [Y]))
    assert node_outputs(path) == [NodeOutputs("", "Split", ("a", "b")), NodeOutputs("", "Add", ("y",))]


def test_an_optional_output_that_is_left_out_is_not_listed(tmp_path: Path) -> None:
    path = saved(tmp_path, write("gap", [Node("LayerNormalization", ["x"], ["y", "", "mean"])], [X], [Y]))
    assert node_outputs(path)[0].outputs == ("y", "mean")


def test_additional_outputs_are_appended_for_onnx_runtime(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    nodes = [Node("Neg", ["x"], ["hidden"]), Node("Neg", ["hidden"], ["y"])]
    value = Value("y", "float32", ["batch", 4])
    path = saved(tmp_path, write("chain", nodes, [X], [value]))
    session = onnxruntime.InferenceSession(with_outputs(path, ["hidden"]), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["y", "hidden"]


def test_operators_of_other_domains_keep_their_domain(tmp_path: Path) -> None:
    node = message(4, b"Rope") + message(7, b"com.example")
    domain = message(8, message(1, b"com.example") + number(2, 3))
    path = saved(tmp_path, graph_of(message(1, node), message(1, message(4, b"Add"))) + domain)
    graph = read_graph(path)
    assert graph.operators == {"com.example::Rope": 1, "Add": 1}
    assert (graph.custom_domains, graph.operator_sets["com.example"]) == (("com.example",), 3)


def tensor(sides: list[int], kind: int) -> bytes:
    return message(5, b"".join(number(1, side) for side in sides) + number(2, kind) + message(8, b"w"))


@pytest.mark.parametrize(
    ("sides", "kind", "size_bytes"),
    [
        ([], 1, 4),
        ([0, 5], 1, 0),
        ([3], 22, 1),
        ([1000], 16, 2000),
        ([1000], 99, 0),
        ([-1, 5], 1, 0),
    ],
    ids=["a scalar", "empty", "half bytes", "bfloat16", "an unknown type", "a negative side"],
)
def test_bytes_of_a_weight_follow_from_shape_and_type(
    tmp_path: Path, sides: list[int], kind: int, size_bytes: int
) -> None:
    assert read_graph(saved(tmp_path, graph_of(tensor(sides, kind)))).weight_bytes == size_bytes


def test_packed_dimensions_count_like_single_ones(tmp_path: Path) -> None:
    packed = message(5, message(1, bytes([4, 3])) + number(2, 1) + message(8, b"w"))
    assert read_graph(saved(tmp_path, graph_of(packed))).weight_bytes == 48


def slot(type_proto: bytes) -> bytes:
    return message(11, message(1, b"x") + message(2, type_proto))


@pytest.mark.parametrize(
    ("type_proto", "expected"),
    [
        (message(1, number(1, 1)), Slot("x", "float32", None)),
        (message(1, number(1, 1) + message(2, b"")), Slot("x", "float32", ())),
        (message(1, number(1, 77)), Slot("x", None, None)),
        (message(1, number(1, 7) + message(2, message(1, number(1, -1)))), Slot("x", "int64", (None,))),
        (message(1, number(1, 7) + message(2, message(1, b""))), Slot("x", "int64", (None,))),
        (message(4, b""), Slot("x", None, None, "sequence")),
        (message(9, b""), Slot("x", None, None, "optional")),
        (b"", Slot("x", None, None, "unknown")),
    ],
    ids=["any shape", "a scalar", "an unknown type", "side -1", "a side without size", "sequence", "optional", "none"],
)
def test_types_of_inputs_that_are_not_plain_tensors(tmp_path: Path, type_proto: bytes, expected: Slot) -> None:
    assert read_graph(saved(tmp_path, graph_of(slot(type_proto)))).inputs == (expected,)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200))
def test_damaged_graphs_are_refused_or_read_and_never_upset_the_reader(
    tmp_path_factory: pytest.TempPathFactory, rubbish: bytes, place: int
) -> None:
    whole = write("tiny", [PRODUCT], [X], [Y], [WEIGHT])
    data = whole[:place] + rubbish + whole[place + len(rubbish) :]
    path = saved(tmp_path_factory.mktemp("graph"), data or b"\0")
    try:
        assert read_graph(path).weight_bytes >= 0
        node_outputs(path)
    except ModelBroken as error:
        assert error.remedy
