"""Links in model folders: they stay inside the folder, or inside the repository in the cache of Hugging Face."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.common.errors import ModelBroken
from backend.common.files import find_outside_link
from backend.engines._onnx import genai_config
from backend.engines._openvino import model_files
from tests import tiny_genai

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
Make = Callable[[Path], Path]


def openvino(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in OPENVINO:
        (folder / name).write_text("{}")
    return folder


OPENVINO = (model_files.GRAPH, model_files.WEIGHTS, model_files.VOCABULARY, "config.json")
FORMATS = [
    (openvino, model_files.open_folder, OPENVINO),
    (tiny_genai.make, genai_config.open_folder, ("model.onnx", "tokenizer.json", genai_config.CONFIG)),
]


@pytest.mark.parametrize(("make", "open_folder", "name"), [(m, o, n) for m, o, names in FORMATS for n in names])
def test_a_link_out_of_the_folder_is_refused(
    tmp_path: Path, make: Make, open_folder: Callable[[Path], object], name: str
) -> None:
    folder = make(tmp_path / "model")
    open_folder(folder)
    shutil.move(folder / name, tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelBroken, match=f"model/{name} is a link to a file outside its folder"):
        open_folder(folder)


@pytest.mark.parametrize(("make", "open_folder", "names"), FORMATS)
def test_a_snapshot_links_to_its_blobs(
    tmp_path: Path, make: Make, open_folder: Callable[[Path], object], names: tuple[str, ...]
) -> None:
    repository = tmp_path / "models--maker--model"
    folder = make(repository / "snapshots" / ("a" * 40))
    (repository / "blobs").mkdir()
    for file in list(folder.iterdir()):
        shutil.move(file, repository / "blobs" / file.name)
        file.symlink_to(Path("../../blobs") / file.name)
    open_folder(folder)
    (tmp_path / "linked").symlink_to(folder)
    open_folder(tmp_path / "linked")
    other = tmp_path / "models--other--model" / "blobs"
    other.mkdir(parents=True)
    (folder / names[0]).unlink()
    (folder / names[0]).symlink_to(shutil.copy(repository / "blobs" / names[0], other))
    with pytest.raises(ModelBroken, match="outside its folder"):
        open_folder(folder)


def test_names_in_folders_below_count_too(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_text("")
    assert find_outside_link(tmp_path / "a", ["b/x", "missing"]) is None
    assert find_outside_link(tmp_path / "a" / "b", ["../y"]) == "../y"
