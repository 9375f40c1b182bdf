"""Models that a user adds and removes: ids, the stored file, and what stays untouched."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.child.download.workspace import NAME, lock_for, part_for
from backend.common.config.settings import load_settings
from backend.common.errors import Configuration, JobActive, ModelBroken, ModelNotDownloaded, UnknownModel, Validation
from backend.models import Catalogue
from backend.models.entries import shipped
from backend.models.registration import Addition, add, forget_if_nothing_came, remove
from tests.test_gguf import gguf

DEFAULT, TUNES = "smollm2-135m-instruct", "folk-tunes"
STEMS = [id_ for id_, entry in shipped(Path("models")).items() if entry.task == "stems"]
SONGS = [id_ for id_, entry in shipped(Path("models")).items() if entry.facts and "gated" in entry.facts]
URL = "https://models.example/Some%20Model.Q4.gguf?key=secret"
Build = Callable[..., Catalogue]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes a catalogue from the text of a configuration file, as a new start of the server does."""

    def make(text: str = "") -> Catalogue:
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        return Catalogue(load_settings({}, {}, tmp_path), environ={"HF_HOME": str(tmp_path / "hf")})

    return make


def models_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def ids(catalogue: Catalogue) -> list[str]:
    return [model.id for model in catalogue.models()]


def test_an_added_model_is_there_after_a_restart(build: Build, tmp_path: Path) -> None:
    entry = add(build(), URL).entry
    assert (entry.id, entry.name, entry.task) == ("some-model.q4", "Some Model.Q4", "text")
    assert entry.target == tmp_path / "data/models/some-model.q4.gguf"
    again = build().resolve("some-model.q4")
    assert again == entry
    model = build().model(again)
    assert (model.state, model.source) == ("downloadable", "https://models.example/Some%20Model.Q4.gguf")
    assert "secret" not in str(model)
    assert again.source and again.source.addresses() == [URL], "the query is needed to fetch it"
    entry.target.write_bytes(gguf())
    assert build().model(again).state == "ready"


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_the_register_is_for_this_user_alone(build: Build, tmp_path: Path) -> None:
    add(build(), URL)
    assert stat.S_IMODE((tmp_path / "data/models/added.json").stat().st_mode) == 0o600


def test_what_another_process_adds_is_seen(build: Build) -> None:
    catalogue = build()
    assert ids(catalogue) == [DEFAULT, TUNES, *STEMS, *SONGS]
    add(build(), URL)
    assert ids(catalogue) == [DEFAULT, TUNES, *STEMS, *SONGS, "some-model.q4"]
    remove(build(), "some-model.q4")
    assert ids(catalogue) == [DEFAULT, TUNES, *STEMS, *SONGS]


def test_the_same_source_is_the_same_model(build: Build) -> None:
    catalogue = build()
    assert add(catalogue, URL).new
    assert add(catalogue, URL) == Addition(catalogue.resolve("some-model.q4"), new=False)
    assert add(catalogue, "some-model.q4").new is False
    other = add(catalogue, URL, "mine", "text")
    assert (other.entry.id, other.entry.task, other.new) == ("mine", "text", True)


def test_a_taken_name_gets_a_number(build: Build, tmp_path: Path) -> None:
    (models_dir(tmp_path) / "Tiny.gguf").write_bytes(gguf())
    catalogue = build()
    assert add(catalogue, "https://a.example/tiny.gguf").entry.id == "tiny-2"
    assert add(catalogue, "hf:maker/model/tiny.gguf").entry.id == "tiny-3"


@pytest.mark.parametrize("name", ["NUL", "com1", "con.v2", "LPT9."])
def test_a_file_called_like_a_device_of_windows_gets_another_name(build: Build, name: str) -> None:
    entry = add(build(), f"https://a.example/{name}.gguf").entry
    assert entry.id.startswith("model-") and entry.target.name == f"{entry.id}.gguf"


@pytest.mark.parametrize("id_", ["Tiny", "a b", "", "../x", ".hidden", "-x", "a" * 101, "ä", "a\n", "nul", "com1.x"])
def test_ids_that_are_refused(build: Build, id_: str) -> None:
    with pytest.raises(Validation, match="is not a valid model id") as caught:
        add(build(), URL, id_)
    assert "starting with a letter" in caught.value.remedy


def test_an_id_that_is_taken_is_refused(build: Build) -> None:
    with pytest.raises(Validation, match="Another model has the id"):
        add(build(), URL, DEFAULT)


@pytest.mark.parametrize(("task", "expected"), [("texts", "Unknown task"), ("stems", "No engine runs .gguf models")])
def test_tasks_that_are_refused(build: Build, task: str, expected: str) -> None:
    with pytest.raises(Validation, match=expected):
        add(build(), URL, None, task)


def test_models_of_the_catalogue_keep_their_names(build: Build) -> None:
    assert add(build(), DEFAULT) == Addition(build().resolve(DEFAULT), new=False)
    with pytest.raises(Validation, match="are fixed"):
        add(build(), DEFAULT, "mine")


def test_a_file_in_a_model_folder_is_added_by_its_path(build: Build, tmp_path: Path) -> None:
    file = models_dir(tmp_path) / "sub" / "Deep.gguf"
    file.parent.mkdir()
    file.write_bytes(gguf())
    entry = add(build(), "sub/Deep.gguf", "deep-one").entry
    assert (entry.id, entry.target) == ("deep-one", file)
    assert build().path_of(build().resolve("deep-one")) == file
    remove(build(), "deep-one")
    assert file.exists(), "it was there before"
    assert set(ids(build())) == {DEFAULT, TUNES, *STEMS, *SONGS, "deep"}, "folders below are searched"


def test_over_http_paths_stay_within_the_folders(build: Build, tmp_path: Path) -> None:
    secret = tmp_path / "secret.gguf"
    secret.write_bytes(gguf())
    (models_dir(tmp_path) / "evil.gguf").symlink_to(secret)
    for path in (str(secret), "../../secret.gguf", "evil.gguf", "//host/x.gguf"):
        with pytest.raises(Validation, match="outside the model folders"):
            add(build(), path)
    with pytest.raises(UnknownModel, match="The model file"):
        add(build(), "absent.gguf")
    assert add(build(), str(secret), anywhere=True).entry.target == secret


def test_files_that_are_no_models_are_not_added(build: Build, tmp_path: Path) -> None:
    (models_dir(tmp_path) / "page.gguf").write_bytes(b"<html></html>")
    (models_dir(tmp_path) / "weights.bin").write_bytes(b"\x80\x02")
    with pytest.raises(ModelBroken, match="a web page"):
        add(build(), str(tmp_path / "data/models/page.gguf"), "x")
    with pytest.raises(ModelBroken, match="pickle"):
        add(build(), "weights.bin")
    assert not (tmp_path / "data/models/added.json").exists()


def test_removing_an_added_model_removes_its_file_and_its_part(build: Build, tmp_path: Path) -> None:
    entry = add(build(), URL).entry
    entry.target.write_bytes(gguf())
    part = part_for(entry.target.parent / NAME, entry.target.name)
    part.mkdir()
    remove(build(), entry.id)
    assert not entry.target.exists() and not part.exists()
    assert ids(build()) == [DEFAULT, TUNES, *STEMS, *SONGS]
    with pytest.raises(UnknownModel):
        remove(build(), entry.id)


def test_a_model_of_the_catalogue_becomes_downloadable_again(build: Build, tmp_path: Path) -> None:
    target = build().resolve(DEFAULT).target
    models_dir(tmp_path)
    target.write_bytes(b"x")
    remove(build(), DEFAULT)
    assert build().models()[0].state == "downloadable"
    with pytest.raises(ModelNotDownloaded, match="not on this machine"):
        remove(build(), DEFAULT)


def test_a_file_that_somebody_put_into_our_folder_is_removed(build: Build, tmp_path: Path) -> None:
    (models_dir(tmp_path) / "mine.gguf").write_bytes(gguf())
    remove(build(), "mine")
    assert ids(build()) == [DEFAULT, TUNES, *STEMS, *SONGS]


def test_what_is_not_ours_is_left_alone(build: Build, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    for name in ("own", "foreign"):
        (more / f"{name}.gguf").write_bytes(gguf())
    text = "model_folders: [more]\nmodels: {mine: {path: more/own.gguf}}"
    with pytest.raises(Validation, match="is configured in config.yaml"):
        remove(build(text), "mine")
    with pytest.raises(Validation, match="does not manage"):
        remove(build(text), "foreign")
    assert len(list(more.iterdir())) == 2


def test_an_added_default_is_not_removed_under_the_server_s_feet(build: Build) -> None:
    add(build(), URL, "mine")
    with pytest.raises(Validation, match="default model"):
        remove(build("default_models: {text: mine}"), "mine")


def test_a_model_that_another_program_fetches_is_not_removed(build: Build) -> None:
    entry = add(build(), URL).entry
    lock = lock_for(entry.target.parent / NAME, entry.target.name)
    assert lock.acquire()
    with pytest.raises(JobActive, match="Another program"):
        remove(build(), entry.id)
    lock.release()
    remove(build(), entry.id)


def test_an_addition_that_brought_nothing_is_forgotten(build: Build, tmp_path: Path) -> None:
    catalogue = build()
    addition = add(catalogue, URL)
    part = part_for(models_dir(tmp_path) / NAME, addition.entry.target.name)
    part.mkdir()
    forget_if_nothing_came(catalogue, addition)
    assert ids(catalogue) == [DEFAULT, TUNES, *STEMS, *SONGS, "some-model.q4"], "what came can be gone on with"
    part.rmdir()
    forget_if_nothing_came(catalogue, Addition(addition.entry, new=False))
    assert ids(catalogue) == [DEFAULT, TUNES, *STEMS, *SONGS, "some-model.q4"], "it was there before"
    forget_if_nothing_came(catalogue, addition)
    assert ids(catalogue) == [DEFAULT, TUNES, *STEMS, *SONGS]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"models": []}',
        '{"models": {"a": {}}}',
        '{"models": {"a": {"source": {"kind": "https", "x": 1}}}}',
        json.dumps({"models": {"a": {"source": {"kind": "https", "url": URL}, "task": "nope"}}}),
    ],
)
def test_a_damaged_register_is_told(build: Build, tmp_path: Path, text: str) -> None:
    (models_dir(tmp_path) / "added.json").write_text(text)
    with pytest.raises(Configuration, match="added.json is damaged") as caught:
        build().models()
    assert "add the models again" in caught.value.remedy
