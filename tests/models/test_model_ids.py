"""The ids of model files: made from the whole name, stored when the file is first seen, and never moved."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.child.convert import FOLDER
from backend.common.config.settings import load_settings
from backend.models import Catalogue
from backend.models.model_ids import slug
from backend.models.registration import add
from tests.test_gguf import gguf
from tests.test_safetensors import CONFIG, WEIGHTS


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("llama-3.2-3b-instruct-gguf", "llama-3.2-3b-instruct-gguf"),
        ("Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"),
        ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", "qwen2.5-7b-instruct-q4_k_m"),
        ("v1.5", "v1.5"),
        ("net.v2.ONNX", "net.v2"),
        (".gguf", "gguf"),
        ("My Model (v2).gguf", "my-model-v2"),
        ("Модель-Ёжик.gguf", "model-yozhik"),
        ("μοντέλο.gguf", "montelo"),
        ("모형.gguf", "mohyeong"),
        ("モデル.gguf", "moderu"),
        ("模型-7b.gguf", "moxing-7b"),
        ("通义千问-微调版.gguf", "tongyiqianwen-weitiaoban"),
        ("龘-7b.gguf", "u9f98-7b"),
        ("نموذج.gguf", "nmwdhj"),
        ("דגם.gguf", "dgm"),
        ("Straße-Ångström-Ø.gguf", "strasse-angstrom-o"),
        ("ａ①ﬁ.gguf", "a1fi"),
        ("🦙.gguf", "llama"),
        ("🦙🔥 v2.gguf", "llama-fire-v2"),
        ("……gguf", "gguf"),
        ("x" * 250, "x" * 200),
    ],
)
def test_an_id_keeps_the_whole_name(name: str, id_: str) -> None:
    assert slug(Path(name)) == id_


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Catalogue]:
    """Return a function that opens the catalogue as a new process does, with two model folders."""
    for folder in ("data/models", "a", "b"):
        (tmp_path / folder).mkdir(parents=True)

    def make(text: str = "") -> Catalogue:
        (tmp_path / "config.yaml").write_text(f"model_folders: [a, b]\n{text}")
        return Catalogue(load_settings({}, {}, tmp_path), environ={"HF_HOME": str(tmp_path / "hf")})

    return make


def model(path: Path) -> Path:
    path.write_bytes(gguf())
    return path


def ids(catalogue: Catalogue) -> dict[str, Path]:
    """Return the models that are not shipped."""
    return {id_: entry.target for id_, entry in catalogue.entries().items() if entry.source is None}


def test_an_id_stays_when_another_file_of_the_name_appears_before_it(
    tmp_path: Path, build: Callable[..., Catalogue]
) -> None:
    second = model(tmp_path / "b" / "stone.gguf")
    assert ids(build()) == {"stone": second}
    first = model(tmp_path / "a" / "stone.gguf")
    assert ids(build()) == {"stone": second, "stone-2": first}
    second.unlink()
    assert ids(build()) == {"stone-2": first}, "nor when the first one is gone, which may come back"
    third = model(tmp_path / "data" / "models" / "Stone.gguf")
    assert ids(build()) == {"stone-2": first, "stone-3": third}
    model(second)
    assert ids(build()) == {"stone": second, "stone-2": first, "stone-3": third}


def test_two_processes_give_one_id(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    one, other = build(), build()
    first = model(tmp_path / "b" / "stone.gguf")
    assert ids(one) == ids(other) == {"stone": first}
    second = model(tmp_path / "a" / "stone.gguf")
    assert ids(other) == ids(one) == {"stone": first, "stone-2": second}


def test_a_moved_data_folder_keeps_its_ids(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    model(tmp_path / "data" / "models" / "stone.gguf")
    folder = tmp_path / "data" / "models" / "stone"
    folder.mkdir()
    for name, content in {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": WEIGHTS}.items():
        (folder / name).write_bytes(content)
    before = {id_: path.name for id_, path in ids(build()).items()}
    assert before == {"stone": "stone", "stone-2": "stone.gguf"}
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    moved = Catalogue(load_settings({"storage.data_dir": str(tmp_path / "elsewhere")}, {}, tmp_path))
    assert {id_: path.name for id_, path in ids(moved).items() if path.is_relative_to(tmp_path / "elsewhere")} == before


def test_ids_of_older_versions_are_found(tmp_path: Path, build: Callable[..., Catalogue]) -> None:
    folder = tmp_path / "a" / "qwen2.5-7b-instruct"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "tokenizer.json").write_text("{}")
    forms = tmp_path / "data" / "models" / FOLDER / "qwen2"
    forms.mkdir(parents=True)
    catalogue = build("default_models: {text: qwen2}\n")
    assert list(ids(catalogue)) == ["qwen2.5-7b-instruct"]
    assert catalogue.resolve("qwen2").id == catalogue.default_for("text").id == "qwen2.5-7b-instruct"
    assert catalogue.is_default("qwen2.5-7b-instruct")
    assert not forms.exists() and forms.with_name("qwen2.5-7b-instruct").is_dir(), "its converted forms stay its own"
    model(tmp_path / "a" / "qwen2.gguf")
    assert build().resolve("qwen2").target.name == "qwen2.gguf", "a model's own id comes first"


def test_a_file_that_the_configuration_names_is_found_by_its_earlier_id(
    tmp_path: Path, build: Callable[..., Catalogue]
) -> None:
    file = model(tmp_path / "a" / "stone.gguf")
    assert ids(build()) == {"stone": file}
    named = build("models: {mine: {path: a/stone.gguf}}\n")
    assert ids(named) == {"mine": file} and named.resolve("stone").id == "mine"
    other = model(tmp_path / "b" / "other.gguf")
    taking = build("models: {stone: {path: b/other.gguf}}\n")
    assert ids(taking) == {"stone": other, "stone-2": file}, "the configuration decides"


def test_an_added_model_never_takes_the_id_of_a_file_that_is_away(
    tmp_path: Path, build: Callable[..., Catalogue]
) -> None:
    file = model(tmp_path / "b" / "stone.gguf")
    build().entries()
    file.rename(tmp_path / "stone.gguf")
    assert add(build(), "https://mirror.example/stone.gguf").entry.id == "stone-2"
    (tmp_path / "stone.gguf").rename(file)
    assert ids(build()) == {"stone": file}


@pytest.mark.parametrize("text", ["", "[]", '{"ids": 5}', '{"ids": {"x": 5}}', "\xff"])
def test_damaged_ids_are_no_reason_to_fail(tmp_path: Path, build: Callable[..., Catalogue], text: str) -> None:
    (tmp_path / "data" / "models" / "ids.json").write_text(text, encoding="latin-1")
    file = model(tmp_path / "a" / "stone.gguf")
    assert ids(build()) == {"stone": file} and ids(build()) == {"stone": file}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders of Windows have no such permissions")
def test_without_a_place_to_write_the_id_lasts_as_long_as_the_process(
    tmp_path: Path, build: Callable[..., Catalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("backend.models.model_ids.ModelIds._write", refuse)
    second = model(tmp_path / "b" / "stone.gguf")
    catalogue = build()
    assert ids(catalogue) == {"stone": second}
    first = model(tmp_path / "a" / "stone.gguf")
    assert ids(catalogue) == {"stone": second, "stone-2": first}
