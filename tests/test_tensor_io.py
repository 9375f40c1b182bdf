"""Inputs and outputs of ONNX graphs: arrays, files and types, valid and invalid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from backend.common.errors import Validation
from backend.engines._onnx.npy import read_rows, write_rows
from backend.engines._onnx.tensor_io import count_non_finite, describe, random_inputs, to_inputs, write_output


@dataclass
class Slot:
    """An input of a graph, with the attributes that ONNX Runtime's have."""

    name: str
    type: str = "tensor(float)"
    shape: list[int | str | None] | None = None


def convert(value: Any, kind: str = "float", shape: list[int | str | None] | None = None, more_sides: int = 0) -> Any:
    """Return the value as the array for an input of this type and shape."""
    return to_inputs([Slot("x", f"tensor({kind})", shape)], {"x": value}, more_sides)["x"]


def refusal(*args: Any, **options: Any) -> str:
    """Return the message with which a value is rejected."""
    with pytest.raises(Validation) as refused:
        convert(*args, **options)
    assert refused.value.extra == {"fields": ["inputs.x"]} and refused.value.remedy
    return refused.value.detail


def as_file(folder: Path, content: Any, name: str = "x.bin") -> dict[str, str]:
    """Return a file as inputs name it: the array as .npy, the arrays as .npz, or the bytes as they are."""
    path = folder / name
    with path.open("wb") as file:
        if isinstance(content, np.ndarray):
            np.save(file, content)
        elif isinstance(content, dict):
            np.savez(file, **content)
        else:
            file.write(content)
    return {"path": str(path), "name": name}


# Types

REPRESENTED: list[tuple[Any, str, Any]] = [
    ([1, 2], "float", np.array([1, 2], "float32")),
    ([1.0, -2.0], "int64", np.array([1, -2], "int64")),
    ([True, False], "uint8", np.array([1, 0], "uint8")),
    ([0, 1], "bool", np.array([False, True])),
    ([0.1], "float16", np.array([0.1], "float16")),
    ([1e-50], "float", np.array([0], "float32")),
    (np.array([np.inf, np.nan]), "float16", np.array([np.inf, np.nan], "float16")),
    ([127, -128], "int8", np.array([127, -128], "int8")),
    ([2], "complex64", np.array([2 + 0j], "complex64")),
    (np.array([300], "uint16"), "double", np.array([300.0])),
]


@pytest.mark.parametrize(("value", "kind", "expected"), REPRESENTED)
def test_numbers_that_a_type_can_represent_are_converted(value: Any, kind: str, expected: Any) -> None:
    array = convert(value, kind, [None] * expected.ndim)
    assert array.dtype == expected.dtype and np.array_equal(array, expected, equal_nan=expected.dtype.kind in "fc")


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([0.5], "int32"), ([128], "int8"), ([-1], "uint8"), ([1e39], "float"), ([70_000], "float16"), ([2], "bool"),
        (np.array([1 + 1j]), "double"), (np.array([np.nan]), "int64"), ([2**40], "int32"),
    ],
)  # fmt: skip
def test_numbers_that_a_type_cannot_represent_are_rejected_and_not_wrapped(value: Any, kind: str) -> None:
    assert "cannot represent" in refusal(value, kind, [None])


def test_texts_become_an_array_of_strings_and_numbers_do_not() -> None:
    texts = convert([["a", "béd"]], "string", [1, 2])
    assert texts.dtype == object and texts.tolist() == [["a", "béd"]]
    assert "should hold strings" in refusal([1, 2], "string", [2])
    assert "not an array of float32" in refusal(["1"], "float", [1])


@pytest.mark.parametrize("value", [[[1, 2], [3]], [None], [{}], [[1], 2]])
def test_what_is_not_a_regular_array_of_numbers_is_rejected(value: Any) -> None:
    assert "not an array of float32" in refusal(value, "float", [None, None])


def test_an_input_that_is_not_a_tensor_is_rejected() -> None:
    with pytest.raises(Validation, match=r"seq\(tensor\(float\)\) are not supported"):
        to_inputs([Slot("x", "seq(tensor(float))", [])], {"x": [1]})


# Shapes


@pytest.mark.parametrize(
    ("shape", "value", "more_sides", "fits"),
    [
        ([2, "width"], np.zeros((2, 7)), 0, True),
        ([2, "width"], np.zeros((3, 7)), 0, False),
        ([2], np.zeros((2, 1)), 0, False),
        ([], np.float32(1), 0, True),
        ([], 1.5, 0, True),
        ([None, None], np.zeros((0, 4)), 0, True),
        ([3], np.zeros((5, 3)), 1, True),
        ([3], np.zeros((5, 2)), 1, False),
        ([], np.float32(1), 1, False),
    ],
)
def test_fixed_sides_must_match_and_dynamic_ones_may_have_any_length(
    shape: list[int | str | None], value: Any, more_sides: int, fits: bool
) -> None:
    array = np.asarray(value, "float32")
    if fits:
        assert convert(array, "float", shape, more_sides).shape == array.shape
    else:
        message = refusal(array, "float", shape, more_sides=more_sides)
        assert str(list(array.shape)) in message and ("for each entry" in message) == bool(more_sides)


def test_a_transposed_array_arrives_contiguous_with_the_same_values() -> None:
    turned = np.arange(6, dtype="float32").reshape(2, 3).T
    array = convert(turned, "float", [3, 2])
    assert array.flags.c_contiguous and np.array_equal(array, turned)


def test_a_shape_is_described_with_the_names_of_its_dynamic_sides() -> None:
    assert describe(Slot("x", "tensor(float16)", [1, "height", None])) == "float16 [1, height, ?]"
    assert describe(Slot("x", "map(int64,tensor(float))", None)) == "map(int64,tensor(float)) []"


# Names


def test_an_unknown_name_gets_the_nearest_one_as_a_remedy_or_the_list() -> None:
    slots = [Slot("input_ids", "tensor(int64)", [1]), Slot("mask", "tensor(int64)", [1])]
    with pytest.raises(Validation) as refused:
        to_inputs(slots, {"input_id": [1], "mask": [1]})
    assert refused.value.remedy == "Did you mean 'input_ids'?"
    with pytest.raises(Validation) as refused:
        to_inputs(slots, {"zzz": [1]})
    assert "input_ids int64 [1], mask int64 [1]" in refused.value.remedy


def test_a_missing_input_is_named_with_what_it_should_be() -> None:
    with pytest.raises(Validation, match=r"inputs\.b: it is missing; it should be float32 \[2\]"):
        to_inputs([Slot("a", shape=[1]), Slot("b", shape=[2])], {"a": [0]})


# Files


def test_the_arrays_of_an_archive_become_the_inputs_of_their_names(tmp_path: Path) -> None:
    archive = as_file(tmp_path, {"a": np.ones(2, "float32"), "b": np.zeros(1, "float32")})
    arrays = to_inputs([Slot("a", shape=[2]), Slot("b", shape=[1])], {"all": archive})
    assert arrays["a"].tolist() == [1, 1] and arrays["b"].tolist() == [0]


def test_of_an_archive_for_one_input_the_array_of_its_name_or_the_only_one_is_taken(tmp_path: Path) -> None:
    both = as_file(tmp_path, {"x": np.ones(1), "y": np.zeros(1)}, "both.npz")
    alone = as_file(tmp_path, {"other": np.full(1, 7.0)}, "alone.npz")
    neither = as_file(tmp_path, {"y": np.ones(1), "z": np.ones(1)}, "neither.npz")
    assert convert(both, shape=[1]).tolist() == [1] and convert(alone, shape=[1]).tolist() == [7]
    assert "several arrays: y, z" in refusal(neither, shape=[1])


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a", b"\x93NUMPY\x01\x00\xff\xff", b"RIFF\0\0\0\0WAVE", b"\x89PNG\r\n\x1a\n"]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    message = refusal(as_file(tmp_path, content, "odd.bin"), shape=[None])
    assert "'odd.bin'" in message or "the picture has no header" in message


def test_an_array_of_objects_in_a_file_is_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "objects.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    assert "cannot be read" in refusal({"path": str(path), "name": path.name}, "string", [None])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (["frames"], [0.25, 0.25]),
        ([1, "frames"], [[0.25, 0.25]]),
        ([2, "frames"], [[0.5, 0.25], [0.0, 0.25]]),
        ([1, 2, "frames"], [[[0.5, 0.25], [0.0, 0.25]]]),
    ],
)
def test_the_channels_of_a_sound_are_averaged_where_the_input_has_one(
    tmp_path: Path, shape: list[int | str | None], expected: Any
) -> None:
    path = tmp_path / "sound.wav"
    soundfile.write(path, np.array([[0.5, 0.0], [0.25, 0.25]]), 8000, "FLOAT")
    assert convert({"path": str(path), "name": "sound.wav"}, shape=shape).tolist() == expected


# Random inputs


def test_random_inputs_have_the_asked_sizes_and_are_the_same_for_a_seed() -> None:
    slots = [Slot("a", "tensor(float16)", ["batch", 3]), Slot("b", "tensor(int64)", ["other", "batch"])]
    first, again, other = (random_inputs(slots, seed, {"batch": 50}) for seed in (1, 1, 2))
    assert first["a"].shape == (50, 3) and first["b"].shape == (1, 50)
    assert first["a"].dtype == np.float16 and set(first["b"].ravel()) == {0, 1}
    assert all(np.array_equal(first[name], again[name]) for name in "ab")
    assert not np.array_equal(first["a"], other["a"])


@pytest.mark.parametrize(
    ("slot", "reason"),
    [(Slot("x", "tensor(string)", [1]), "no random input"), (Slot("x", "tensor(int8)", ["n", "n"]), "too large")],
)
def test_no_random_input_is_made_for_texts_or_for_a_size_that_fills_the_memory(slot: Slot, reason: str) -> None:
    with pytest.raises(Validation, match=reason):
        random_inputs([slot], 1, {"n": 1 << 15})


# Outputs


def test_an_array_is_written_for_numpy_or_as_json(tmp_path: Path) -> None:
    value = np.array([[1.5, -2.0]], "float32")
    assert write_output(tmp_path, "y", value, False) == ("y.npy", "application/octet-stream", None)
    assert np.array_equal(np.load(tmp_path / "y.npy"), value)
    assert write_output(tmp_path, "y", value, True) == ("y.json", "application/json", [[1.5, -2.0]])
    assert json.loads((tmp_path / "y.json").read_text("utf-8")) == [[1.5, -2.0]]


def test_strings_are_written_without_a_pickle(tmp_path: Path) -> None:
    write_output(tmp_path, "y", np.array(["a", "bé"], dtype=object), False)
    assert np.load(tmp_path / "y.npy", allow_pickle=False).tolist() == ["a", "bé"]


def test_sequences_and_maps_of_a_graph_are_always_json(tmp_path: Path) -> None:
    value = [{3: np.float32(0.5)}, {"é": (np.arange(2),)}]
    name, kind, plain = write_output(tmp_path, "y", value, False)
    assert (name, kind) == ("y.json", "application/json") and plain == [{"3": 0.5}, {"é": [[0, 1]]}]
    assert "é" in (tmp_path / name).read_text("utf-8")


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1j])
def test_numbers_that_json_lacks_are_rejected_with_files_as_the_remedy(tmp_path: Path, odd: complex) -> None:
    with pytest.raises(Validation) as refused:
        write_output(tmp_path, "y", np.array([odd]), True)
    assert "npy" in refused.value.remedy and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (np.array([1, np.nan, -np.inf, np.inf]), 3),
        (np.array([complex(0, np.nan), 1j]), 1),
        (np.full(3, 3e38, "float32"), 0),  # their sum overflows, they do not
        (np.full(100, 60_000, "float16"), 0),
        (np.array([1, 2]), 0),
        ([np.nan], 0),
    ],
)
def test_nan_and_infinite_entries_are_counted(value: Any, count: int) -> None:
    assert count_non_finite(value) == count


# Rows of vectors


@pytest.mark.parametrize(("count", "width"), [(1, 1), (3, 4), (1000, 3), (2, 4096)])
def test_rows_are_written_as_numpy_reads_them_and_read_back(tmp_path: Path, count: int, width: int) -> None:
    rows = np.random.default_rng(1).standard_normal((count, width)).astype("<f4")
    path = tmp_path / "rows.npy"
    write_rows(path, [row.tobytes() for row in rows])
    assert np.array_equal(np.load(path), rows)
    assert read_rows(path, count) == [row.tobytes() for row in rows]
    assert (path.stat().st_size - rows.nbytes) % 64 == 0, "the numbers start at a multiple of 64 bytes"
