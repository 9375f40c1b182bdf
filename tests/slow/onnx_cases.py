"""Make the small graphs of tests/cases/onnx in an environment with the package onnx. Run by hand.

`python -m tests.slow.onnx_cases` writes them anew; with a folder it writes all of the package's test data there.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.loader import load_model_tests

CASES = Path(__file__).resolve().parents[1] / "cases" / "onnx"
# A sample of the package's own backend test data, which its licence (Apache-2.0) lets anyone pass on.
SAMPLE = ("add", "conv_with_strides_padding", "gather_0", "matmul_3d", "softmax_axis_1", "split_equal_parts_1d_opset18")
call = helper.make_node
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def save(name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Sequence[Any] = ()) -> None:
    """Writes one graph."""
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="cases")
    onnx.checker.check_model(model)
    onnx.save(model, CASES / f"{name}.onnx")


def value(name: str, kind: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def make() -> None:
    """Writes all."""
    CASES.mkdir(parents=True, exist_ok=True)
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    save(
        "affine",  # y = x w + 1, z = how large x is, for any number of rows
        [
            call("MatMul", ["x", "w"], ["product"], "multiply"),
            call("Add", ["product", "one"], ["y"], "plus"),
            call("ReduceSum", ["x"], ["z/all"], "sum", keepdims=0),
        ],
        [value("x", FLOAT, ["rows", 3])],
        [value("y", FLOAT, ["rows", 2]), value("z/all", FLOAT, [])],
        [weight, numpy_helper.from_array(np.float32(1), "one")],
    )
    save("log", [call("Log", ["x"], ["y"])], [value("x", FLOAT, ["n"])], [value("y", FLOAT, ["n"])])
    save(
        "picture",
        [call("Identity", ["x"], ["y"])],
        [value("x", FLOAT, [1, 3, 4, 5])],
        [value("y", FLOAT, [1, 3, 4, 5])],
    )
    save(
        "sound",
        [call("Abs", ["x"], ["y"])],
        [value("x", FLOAT, [1, "channels", "n"])],
        [value("y", FLOAT, [1, "channels", "n"])],
    )
    save(
        "texts",
        [call("Identity", ["x"], ["y"])],
        [value("x", TensorProto.STRING, ["n"])],
        [value("y", TensorProto.STRING, ["n"])],
    )
    save(
        "bytes",
        [call("Identity", ["x"], ["y"])],
        [value("x", TensorProto.UINT8, ["n"])],
        [value("y", TensorProto.UINT8, ["n"])],
    )
    save(
        "huge",  # an output of 40 GB
        [call("ConstantOfShape", ["sides"], ["y"])],
        [value("sides", INT, [2])],
        [value("y", FLOAT, ["a", "b"])],
    )
    save(
        "long",  # a loop that takes minutes unless it is stopped
        [
            call(
                "Loop",
                ["times", "", "x"],
                ["y"],
                "again",
                body=helper.make_graph(
                    [
                        call("Identity", ["go_in"], ["go_out"]),
                        call("MatMul", ["v", "v"], ["p"]),
                        call("Tanh", ["p"], ["v_out"]),
                    ],
                    "body",
                    [value("i", INT, []), value("go_in", TensorProto.BOOL, []), value("v", FLOAT, [256, 256])],
                    [value("go_out", TensorProto.BOOL, []), value("v_out", FLOAT, [256, 256])],
                ),
            )
        ],
        [value("times", INT, []), value("x", FLOAT, [256, 256])],
        [value("y", FLOAT, [256, 256])],
    )
    for name in SAMPLE:
        shutil.rmtree(CASES / "conformance" / name, ignore_errors=True)
    export(CASES / "conformance", SAMPLE)


def export(folder: Path, names: Collection[str] | None = None) -> None:
    """Writes the package's test data as folders: model.onnx, input_N.npy, output_N.npy, and case.json for the rest.

    `names` are cases of nodes; None means all of them, and the simple models and those of torch besides.
    """
    cases = node.collect_testcases(None)
    if names is None:
        cases += [
            case for kind in ("simple", "pytorch-converted", "pytorch-operator") for case in load_model_tests(kind=kind)
        ]
    for case in cases:
        name = case.name.removeprefix("test_")
        if names is not None and name not in names:
            continue
        target = folder / name
        target.mkdir(parents=True)
        if case.model is None:
            model = onnx.load(Path(case.model_dir) / "model.onnx")
            sets = [_stored(path) for path in sorted(Path(case.model_dir).glob("test_data_set_*"))]
        else:
            model, sets = case.model, case.data_sets
        onnx.save(model, target / "model.onnx")
        odd = _save_arrays(target, sets[0]) if sets else "it has no data"
        facts = {"rtol": case.rtol, "atol": case.atol, "odd": odd}
        (target / "case.json").write_text(json.dumps(facts), encoding="utf-8")


def _stored(folder: Path) -> tuple[list[Any], list[Any]]:
    read = [
        [numpy_helper.to_array(onnx.load_tensor(folder / f"{side}_{number}.pb")) for number in range(count)]
        for side in ("input", "output")
        if (count := len(list(folder.glob(f"{side}_*.pb")))) or True
    ]
    return read[0], read[1]


def _save_arrays(target: Path, sets: tuple[list[Any], list[Any]]) -> str | None:
    """Writes inputs and outputs; says what there is among them that no .npy can hold."""
    for side, arrays in zip(("input", "output"), sets, strict=True):
        for number, array in enumerate(arrays):
            if isinstance(array, TensorProto):
                array = numpy_helper.to_array(array)
            if isinstance(array, np.generic):
                array = np.asarray(array)
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufcOUS" or array.dtype.isbuiltin != 1:
                return f"{side} {number} is {type(array).__name__} {getattr(array, 'dtype', '')}".strip()
            np.save(
                target / f"{side}_{number}.npy",
                array.astype(str) if array.dtype == object else array,
                allow_pickle=False,
            )
    return None


if __name__ == "__main__":
    if sys.argv[1:]:
        export(Path(sys.argv[1]))
    else:
        make()
