"""Adding and removing models: ids, tasks, copies of one source, and whose files may be deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.child.download.workspace import NAME, lock_for, part_for
from backend.common.config.settings import load_settings
from backend.common.errors import JobActive, ModelBroken, ModelNotDownloaded, UnknownModel, Validation
from backend.models import Catalogue
from backend.models.model_ids import slug
from backend.models.registration import add, forget_if_nothing_came, remove, settle
from tests.test_gguf import gguf

ADDRESS = "https://models.example/My Model (v2).gguf"
Build = Callable[..., Catalogue]


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def build(tmp_path: Path, models_dir: Path) -> Build:
    """Makes a catalogue over the folder from the text of a configuration file."""

    def make(text: str = "") -> Catalogue:
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        settings_ = load_settings({}, {}, tmp_path)
        return Catalogue(settings_, environ={"HF_HOME": str(tmp_path / "hf")})

    return make


def model_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf())
    return path


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.text(max_size=30))
def test_any_file_name_gives_an_id_that_is_a_safe_file_name(stem: str) -> None:
    made = slug(Path(f"{stem.replace('/', '').replace(chr(0), '')}.gguf"))
    assert made
    assert made == made.lower()
    assert not set(made) - set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert made.rstrip(".") == made


@pytest.mark.parametrize("name", ["CON.gguf", "nul.gguf", "COM1.gguf"])
def test_a_name_that_windows_reserves_is_changed(name: str) -> None:
    assert slug(Path(name)).startswith("model-")


def test_the_id_is_made_from_the_file_and_numbered_if_it_is_taken(build: Build) -> None:
    catalogue = build()
    first = add(catalogue, ADDRESS)
    second = add(catalogue, "https://mirror.example/My Model (v2).gguf")
    assert (first.entry.id, second.entry.id) == ("my-model-v2", "my-model-v2-2")


def test_the_same_source_is_the_same_model(build: Build) -> None:
    catalogue = build()
    assert add(catalogue, ADDRESS).new
    again = add(catalogue, ADDRESS)
    assert (again.new, again.entry.id) == (False, "my-model-v2")


def test_the_same_source_under_another_id_is_another_model(build: Build) -> None:
    catalogue = build()
    add(catalogue, ADDRESS)
    assert add(catalogue, ADDRESS, "second").new
    assert {"my-model-v2", "second"} <= set(catalogue.entries())


@pytest.mark.parametrize("id_", ["", "Upper", "a b", "-x", ".x", "a/b", "..", "x" * 101, "con", "ü", "a\n"])
def test_an_id_that_is_not_a_safe_file_name_is_refused(build: Build, id_: str) -> None:
    with pytest.raises(Validation, match="not a valid model id"):
        add(build(), ADDRESS, id_)


def test_an_id_of_another_model_is_refused(build: Build) -> None:
    catalogue = build()
    add(catalogue, ADDRESS, "mine")
    with pytest.raises(Validation, match="Another model has the id mine"):
        add(catalogue, "https://models.example/other.gguf", "mine")


@pytest.mark.parametrize(("task", "words"), [("dance", "Unknown task"), ("stems", "No engine runs .gguf models")])
def test_a_task_has_to_fit_the_file(build: Build, task: str, words: str) -> None:
    catalogue = build()
    with pytest.raises(Validation, match=words):
        add(catalogue, ADDRESS, task=task)
    assert "my-model-v2" not in catalogue.entries()


def test_a_known_id_is_found_and_keeps_its_id_and_task(build: Build) -> None:
    catalogue = build()
    add(catalogue, ADDRESS)
    assert not add(catalogue, "my-model-v2").new
    with pytest.raises(Validation, match="are fixed"):
        add(catalogue, "my-model-v2", "other")


def test_a_file_elsewhere_is_used_where_it_is_and_survives_its_removal(build: Build, tmp_path: Path) -> None:
    catalogue, file = build(), model_file(tmp_path / "elsewhere" / "x.gguf")
    with pytest.raises(Validation, match="outside the model folders"):
        add(catalogue, str(file))
    entry = add(catalogue, str(file), anywhere=True).entry
    assert catalogue.path_of(catalogue.resolve(entry.id)) == file
    remove(catalogue, entry.id)
    assert file.exists()
    assert entry.id not in catalogue.entries()


def test_a_path_without_a_file_and_a_broken_file_are_not_added(build: Build, models_dir: Path) -> None:
    catalogue = build()
    with pytest.raises(UnknownModel, match="does not exist"):
        add(catalogue, "absent.gguf")
    (models_dir / "page.gguf").write_bytes(b"<!DOCTYPE html><html>")
    with pytest.raises(ModelBroken, match="web page"):
        add(catalogue, "page.gguf", "mine")
    assert catalogue.added.entries() == {}


def test_removal_deletes_a_downloaded_file_and_its_parts(build: Build) -> None:
    catalogue = build()
    entry = add(catalogue, "https://models.example/x-00001-of-00002.gguf").entry
    names = [f"{entry.id}-0000{number}-of-00002.gguf" for number in (1, 2)]
    files = [model_file(entry.target.with_name(name)) for name in names]
    part = part_for(entry.target.parent / NAME, names[1])
    part.mkdir(parents=True)
    remove(catalogue, entry.id)
    assert not any(path.exists() for path in (*files, part))
    assert entry.id not in catalogue.entries()


def test_a_model_that_another_program_downloads_is_not_removed(build: Build) -> None:
    catalogue = build()
    entry = add(catalogue, ADDRESS).entry
    workspace = entry.target.parent / NAME
    workspace.mkdir(exist_ok=True)
    lock = lock_for(workspace, entry.target.name)
    assert lock.acquire()
    with pytest.raises(JobActive):
        remove(catalogue, entry.id)
    assert entry.id in catalogue.entries()
    lock.release()
    remove(catalogue, entry.id)
    assert entry.id not in catalogue.entries()


def test_a_model_of_the_configuration_is_not_removed(build: Build, tmp_path: Path) -> None:
    file = model_file(tmp_path / "x.gguf")
    with pytest.raises(Validation, match="configured in config.yaml"):
        remove(build(f"models: {{mine: {{path: {file}}}}}"), "mine")
    assert file.exists()


def test_a_file_in_a_folder_of_the_user_is_not_removed(build: Build, tmp_path: Path) -> None:
    file = model_file(tmp_path / "shelf" / "x.gguf")
    with pytest.raises(Validation, match="does not manage"):
        remove(build(f"model_folders: [{file.parent}]"), "x")
    assert file.exists()


def test_a_part_of_the_program_and_an_unknown_model_are_not_removed(build: Build) -> None:
    with pytest.raises(Validation, match="a part of Touchstone"):
        remove(build(), "folk-tunes")
    with pytest.raises(UnknownModel):
        remove(build(), "absent")
    with pytest.raises(ModelNotDownloaded):
        remove(build(), "smollm2-135m-instruct")


def test_a_default_model_that_was_added_is_not_removed(build: Build) -> None:
    add(build(), ADDRESS, "mine")
    catalogue = build("default_models: {text: mine}")
    with pytest.raises(Validation, match="is a default model"):
        remove(catalogue, "mine")


def test_an_addition_is_undone_if_nothing_came(build: Build) -> None:
    catalogue = build()
    forget_if_nothing_came(catalogue, add(catalogue, ADDRESS))
    assert "my-model-v2" not in catalogue.entries()


@pytest.mark.parametrize("came", ["file", "part"])
def test_an_addition_stays_if_there_is_something_to_resume(build: Build, came: str) -> None:
    catalogue = build()
    addition = add(catalogue, ADDRESS)
    if came == "file":
        model_file(addition.entry.target)
    else:
        part_for(addition.entry.target.parent / NAME, addition.entry.target.name).mkdir(parents=True)
    forget_if_nothing_came(catalogue, addition)
    assert addition.entry.id in catalogue.entries()


def test_a_model_that_existed_before_is_never_undone(build: Build) -> None:
    catalogue = build()
    add(catalogue, ADDRESS)
    forget_if_nothing_came(catalogue, add(catalogue, ADDRESS))
    assert "my-model-v2" in catalogue.entries()


def test_a_second_download_of_the_same_commit_keeps_the_list_of_files(build: Build) -> None:
    catalogue = build()
    entry = add(catalogue, "hf:maker/model/x.gguf").entry
    came = {"path": "/hub/x.gguf", "commit": "c1", "brought": ["x.gguf"], "licence": "mit"}
    settle(catalogue, entry, came)
    settle(catalogue, catalogue.resolve(entry.id), {**came, "brought": ["y.gguf"]})
    source = catalogue.added.entries()[entry.id].source
    assert source and source.downloaded_files == ["x.gguf", "y.gguf"]
    settle(catalogue, catalogue.resolve(entry.id), {**came, "commit": "c2", "brought": []})
    source = catalogue.added.entries()[entry.id].source
    assert source and (source.downloaded_files, source.commit) == ([], "c2")
