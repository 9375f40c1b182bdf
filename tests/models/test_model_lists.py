"""Lists of models: what is read once and when it is read again, and the time that hundreds of files take."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from backend.common.clean_text import json_safe
from backend.common.config.settings import load_settings
from backend.common.types import Model
from backend.models import Catalogue
from backend.models.stamps import ABSENT, stamps_of
from backend.server.model_list import model_list_response
from backend.tasks.options import options_schema
from tests.test_gguf import FACTS, TEXT, gguf

FILES = 120


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data/models").mkdir(parents=True)
    return tmp_path / "data/models"


@pytest.fixture
def catalogue(folder: Path) -> Catalogue:
    settings = load_settings({}, {}, folder.parents[1])
    schema = Catalogue(settings, lambda task: options_schema(task, 256), {"HF_HOME": str(folder / "hf")})
    return schema


def states(catalogue: Catalogue) -> dict[str, str]:
    return {model.id: model.state for model in catalogue.models() if "publisher" not in model.details}


def counted(monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue) -> list[str]:
    read: list[str] = []
    original = catalogue.model

    def model(entry: Any) -> Model:
        read.append(entry.id)
        return original(entry)

    monkeypatch.setattr(catalogue, "model", model)
    return read


def test_an_unchanged_file_is_not_read_again(
    catalogue: Catalogue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.gguf").write_bytes(gguf())
    first = catalogue.models()
    read = counted(monkeypatch, catalogue)
    assert catalogue.models() == first and set(read) <= {"folk-tunes"}, "only folders are read again"


Change = Callable[[Path], object]
CHANGES: dict[str, tuple[Change, str | None]] = {
    "content": (lambda file: file.write_bytes(b"<!DOCTYPE html>"), "broken"),
    "another file": (lambda file: file.with_suffix(".new").rename(file), "broken"),
    "removal": (lambda file: file.unlink(), None),
    "touch": (lambda file: os.utime(file, (1, 1)), "ready"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_file_is_read_again(catalogue: Catalogue, folder: Path, kind: str) -> None:
    file = folder / "a.gguf"
    file.write_bytes(gguf())
    (folder / "a.new").write_bytes(b"GGUF" + bytes(len(gguf()) - 4))
    assert states(catalogue)["a"] == "ready"
    change, expected = CHANGES[kind]
    change(file)
    assert states(catalogue).get("a") == expected


def test_a_file_that_appears_is_listed_at_once(catalogue: Catalogue, folder: Path) -> None:
    assert "a" not in states(catalogue)
    (folder / "a.gguf").write_bytes(gguf())
    assert states(catalogue)["a"] == "ready"
    catalogue.downloading.add("smollm2-135m-instruct")
    assert states(catalogue)["smollm2-135m-instruct"] == "downloading"
    catalogue.downloading.clear()
    assert states(catalogue)["smollm2-135m-instruct"] == "downloadable"


def test_folders_and_parts_have_no_stamp(folder: Path) -> None:
    file, part = folder / "a.gguf", folder / "b-00001-of-00002.gguf"
    for each in (file, part):
        each.write_bytes(b"x")
    stamps = stamps_of([file, part, folder, folder / "none.gguf", folder / ("x" * 300)], 1.0)
    assert set(stamps) == {file, folder / "none.gguf"} and stamps[folder / "none.gguf"] == ABSENT


def test_hundreds_of_files_are_listed_in_time(catalogue: Catalogue, folder: Path) -> None:
    """The limit is 50 ms for 500 files; this machine may run other tests at the same time."""
    content = gguf([*FACTS, ("general.author", TEXT, "somebody")])
    for number in range(FILES):
        (folder / f"Model-{number}.Q4_K_M.gguf").write_bytes(content)
    catalogue.models()
    times = []
    for _ in range(3):
        start_s = time.perf_counter()
        body = model_list_response(catalogue.models(), recommended=None).body
        times.append(time.perf_counter() - start_s)
    assert len(json.loads(bytes(body))["models"]) > FILES
    assert min(times) < 0.25, times


def test_the_answer_is_that_of_the_models_one_by_one(catalogue: Catalogue, folder: Path) -> None:
    (folder / "Größe.gguf").write_bytes(gguf())
    models = catalogue.models()
    body = json.loads(bytes(model_list_response(models, recommended={"a": 1}).body))
    assert body == {"models": json.loads(json.dumps([asdict(model) for model in models])), "recommended": {"a": 1}}


def test_values_that_json_cannot_hold_are_made_safe() -> None:
    model = Model("a", "lone \ud800", "text", [], "ready", details={"rate": float("nan")})
    body = json.loads(bytes(model_list_response([model]).body))
    assert body["models"][0]["details"] == json_safe({"rate": float("nan")})


def test_lists_in_several_threads_at_once_do_not_disturb_each_other(catalogue: Catalogue, folder: Path) -> None:
    for number in range(20):
        (folder / f"Model-{number}.gguf").write_bytes(gguf())

    def read(number: int) -> int:
        (folder / f"Model-{number % 20}.gguf").touch()
        return len(catalogue.models())

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(read, range(60)))) == 1
