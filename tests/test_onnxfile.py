"""Errors for ONNX files that are damaged or have external data in other folders."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.common.errors import ModelBroken
from backend.common.formats.onnx.validation import read_onnx
from tests import tiny_genai


@pytest.fixture(scope="module")
def whole() -> bytes:
    return tiny_genai.graph()


def test_a_whole_file_tells_what_it_needs(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(whole)
    found = read_onnx(file)
    assert (found.ir_version, found.operator_sets, found.external) == (8, (("", 17), ("com.microsoft", 1)), ())
    assert ("com.microsoft", "GroupQueryAttention") in found.operators


def test_a_file_cut_at_any_place_is_broken(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "m.onnx"
    for length in [1, 2, 5, 50, 500, 5_000, 50_000, len(whole) // 2, len(whole) - 40]:
        file.write_bytes(whole[:length])
        with pytest.raises(ModelBroken, match="not an ONNX file, or is truncated"):
            read_onnx(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>sign in", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "pointer"),
        (b"PK\x03\x04", "zip or pickle"),
        (b"\x80\x02}q\x00", "zip or pickle"),
        (pickle.dumps(os.getcwd, protocol=3), "zip or pickle"),
        (pickle.dumps(os.getcwd, protocol=5), "zip or pickle"),
        (pickle.dumps(os.getcwd, protocol=0), "not an ONNX file"),
        (b"GGUF\x03\x00\x00\x00", "not an ONNX file"),
        (b"\xff" * 64, "not an ONNX file"),
        (os.urandom(4096), "not an ONNX file"),
    ],
)
def test_what_is_no_onnx_file_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(content)
    with pytest.raises(ModelBroken, match=said):
        read_onnx(file)


OUTSIDE = [
    "../w.bin",
    "/etc/passwd",
    "a/../../w.bin",
    "C:\\w.bin",
    "..\\w.bin",
    "",
    "\\\\host\\share\\w.bin",
    "//host/share/w",
]
DEVICES = ["NUL", "con", "a/aux.bin", "COM1", "lpt9.x.y", "nul ", "prn.", "w\0.bin", "file:w.bin"]


@pytest.mark.parametrize("location", OUTSIDE + DEVICES)
def test_data_from_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "w.bin").write_bytes(b"x" * 100_000)
    file = tmp_path / "in" / "m.onnx"
    file.write_bytes(tiny_genai.graph(external=location))
    with pytest.raises(ModelBroken, match="outside its folder"):
        read_onnx(file)


def test_data_beside_the_file_is_looked_for(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(tiny_genai.graph(external="w.bin"))
    with pytest.raises(ModelBroken, match=r"needs the file w\.bin"):
        read_onnx(file)
    (tmp_path / "w.bin").write_bytes(b"x")
    assert read_onnx(file).external == (("w.bin", 0),)


def test_a_file_of_links_is_read_as_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_bytes(tiny_genai.graph(external="w.bin"))
    (tmp_path / "store" / "b").write_bytes(b"x")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "m.onnx").symlink_to("../store/a")
    (tmp_path / "model" / "w.bin").symlink_to("../store/b")
    assert read_onnx(tmp_path / "model" / "m.onnx").external == (("w.bin", 0),)


def field(number: int, payload: bytes) -> bytes:
    return tiny_genai._field(number, payload)


def outer(tensor: bytes) -> bytes:
    return field(5, tensor)


def sparse(tensor: bytes) -> bytes:
    return field(15, field(1, tensor))


def constant(tensor: bytes) -> bytes:
    return field(1, field(4, b"Constant") + field(5, field(5, tensor)))


def listed(tensor: bytes) -> bytes:
    return field(1, field(5, field(10, tensor)))


def branch(tensor: bytes) -> bytes:
    return field(1, field(4, b"If") + field(5, field(6, outer(tensor))))


def deep_branch(tensor: bytes) -> bytes:
    return field(1, field(5, field(11, branch(tensor))))


@pytest.mark.parametrize("where", [outer, sparse, constant, listed, branch, deep_branch])
def test_data_from_outside_is_refused_wherever_in_the_graph_it_is_wanted(
    tmp_path: Path, where: Callable[[bytes], bytes]
) -> None:
    wants = field(13, field(1, b"location") + field(2, b"../w.bin")) + tiny_genai._number(14, 1)
    file = tmp_path / "m.onnx"
    file.write_bytes(tiny_genai._number(1, 8) + field(7, where(wants)))
    with pytest.raises(ModelBroken, match="outside its folder"):
        read_onnx(file)


def test_data_from_outside_is_refused_in_a_function_of_the_model(tmp_path: Path) -> None:
    wants = field(13, field(1, b"location") + field(2, b"/etc/passwd")) + tiny_genai._number(14, 1)
    file = tmp_path / "m.onnx"
    file.write_bytes(tiny_genai._number(1, 8) + field(7, b"") + field(25, field(7, field(5, field(5, wants)))))
    with pytest.raises(ModelBroken, match="outside its folder"):
        read_onnx(file)


def test_graphs_within_graphs_without_an_end_are_broken(tmp_path: Path) -> None:
    graph = b""
    for _ in range(5000):
        graph = field(1, field(5, field(6, graph)))
    file = tmp_path / "m.onnx"
    file.write_bytes(tiny_genai._number(1, 8) + field(7, graph))
    with pytest.raises(ModelBroken, match="not an ONNX file"):
        read_onnx(file)


def test_a_link_beside_the_file_may_not_lead_away(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 100_000)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    file = tmp_path / "in" / "m.onnx"
    for name, target in (("w.bin", "../secret"), ("deep/w.bin", "../../secret"), ("away/secret", None)):
        if target is None:
            (file.parent / "away").symlink_to("..", target_is_directory=True)
        else:
            (file.parent / name).symlink_to(target)
        file.write_bytes(tiny_genai.graph(external=name))
        with pytest.raises(ModelBroken, match="outside its folder"):
            read_onnx(file)
