"""Model folders: what is found in folders below, what is left out with which reason, and what may be removed."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.child.convert import FOLDER
from backend.child.download.errors import KEPT_FREE_BYTES, fits
from backend.common.config.settings import load_settings
from backend.common.errors import DiskFull, Validation
from backend.models import Catalogue
from backend.models.download import check_space
from backend.models.registration import remove
from tests.models.test_stores import put, put_checkpoint
from tests.test_gguf import gguf, part


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Catalogue]:
    """Return a function that opens the catalogue as a new process does."""

    def make(text: str = "") -> Catalogue:
        (tmp_path / "data" / "models").mkdir(parents=True, exist_ok=True)
        (tmp_path / "config.yaml").write_text(text)
        return Catalogue(load_settings({}, {}, tmp_path), environ={"HF_HOME": str(tmp_path / "hf")})

    return make


def states(catalogue: Catalogue) -> dict[str, str]:
    """Return the models that are not shipped."""
    return {model.id: model.state for model, entry in catalogue.models_with_entries() if entry.source is None}


def test_models_in_folders_below_are_found(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    root = tmp_path / "data" / "models"
    put(root / "maker" / "repo" / "stone.gguf")
    put_checkpoint(root / "maker" / "llama")
    put(root / "maker" / "llama" / "inner" / "never-searched.gguf")
    put(root / "other" / "stone.gguf")
    put(root / FOLDER / "x" / "onnx-int8" / "form.gguf")
    put(root / ".hidden" / "y.gguf")
    put(root / "a" / "b" / "c" / "d" / "e" / "deep.gguf")
    catalogue = build()
    assert states(catalogue) == {"llama": "ready", "stone": "ready", "stone-2": "ready"}
    assert [path for path, _, _ in catalogue.notices()] == [str(root / "a" / "b" / "c" / "d" / "e")]
    assert catalogue.resolve("maker/repo/stone.gguf").id == "stone-2", "folders of one level come first"


def test_what_is_left_out_has_a_reason(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    root = tmp_path / "data" / "models"
    expected = {
        "x.gguf.part1of2": "one part of a manually split file",
        "x.gguf.part": "an incomplete download",
        "weights.bin": "a pickle file",
        "sha256-" + "0" * 64: "belongs to Ollama",
    }
    for name in (*expected, "notes.txt", "training_args.bin"):
        put(root / "below" / name)
    catalogue = build()
    assert states(catalogue) == {}
    reasons = {Path(each.path).name: each for each in catalogue.importable().skipped}
    assert set(reasons) == set(expected)
    for name, reason in expected.items():
        assert reason in reasons[name].reason and reasons[name].remedy


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_loops_of_links_end_and_links_to_the_outside_are_refused(
    tmp_path: Path, build: Callable[..., Catalogue]
) -> None:
    root = tmp_path / "data" / "models"
    put(root / "a" / "x.gguf")
    (root / "a" / "back").symlink_to(root)
    put(tmp_path / "outside" / "y.gguf")
    (root / "away").symlink_to(tmp_path / "outside")
    catalogue = build()
    assert states(catalogue) == {"x": "ready", "y": "broken"}
    model = {model.id: model for model in catalogue.models()}["y"]
    assert model.reason and "is a link to a path outside the model folders" in model.reason
    assert [reason for _, reason, _ in catalogue.notices()] == [
        "Not searched: a link to a folder that is searched already."
    ]


def test_five_hundred_models_are_listed_quickly(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    data = gguf()
    for number in range(500):
        put(tmp_path / "data" / "models" / f"maker-{number % 20}" / f"model-{number}.gguf", data)
    catalogue = build()
    assert len(states(catalogue)) == 500
    began = time.process_time()
    catalogue.models()
    assert time.process_time() - began < 2, "no file is read again"


def test_own_models_are_removable_wherever_they_are(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    root = tmp_path / "data" / "models"
    put(root / "below" / "broken.gguf", b"GGUF")
    for number in (0, 1):
        put(root / f"big-0000{number + 1}-of-00002.gguf", part(number, 2, first=number == 0))
    put(tmp_path / "more" / "theirs.gguf")
    catalogue = build("model_folders: [more]\n")
    removable = {model.id: model.removable for model in catalogue.models()}
    assert {id_ for id_, is_removable in removable.items() if is_removable} == {"broken", "big-00001-of-00002"}
    remove(catalogue, "broken")
    remove(catalogue, "big-00001-of-00002")
    assert [path.name for path in root.rglob("*.gguf")] == []
    with pytest.raises(Validation, match="does not manage"):
        remove(catalogue, "theirs")


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_removal_of_a_linked_folder_removes_the_link(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    folder = put_checkpoint(tmp_path / "more" / "llama")
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / "linked").symlink_to(folder)
    catalogue = build("model_folders: [more]\n")
    remove(catalogue, "linked")
    assert json.loads((folder / "config.json").read_text()) and "linked" not in catalogue.entries()


@pytest.mark.parametrize(("left", "is_refused"), [(KEPT_FREE_BYTES, False), (KEPT_FREE_BYTES - 1, True), (-1, True)])
def test_a_download_that_leaves_less_than_two_gigabytes_is_refused(
    build: Callable[..., Catalogue], monkeypatch: pytest.MonkeyPatch, left: int, is_refused: bool
) -> None:
    entry = next(entry for entry in build().entries().values() if entry.source and entry.source.kind == "pypi-wheel")
    assert entry.source
    needed = (entry.source.download_bytes or 0) + max(entry.source.download_bytes or 0, entry.size_bytes or 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed + left))
    assert fits(needed, needed + left) is not is_refused
    if is_refused:
        with pytest.raises(DiskFull, match="2 GB must stay free"):
            check_space(entry)
    else:
        check_space(entry)
