"""Folders of safetensors: their facts, errors for damaged ones, and for models that no engine runs."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from backend.common.config.settings import load_settings
from backend.common.errors import ModelBroken
from backend.common.formats.safetensors import open_checkpoint
from backend.models import Catalogue
from backend.models.registration import add

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}


BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "I8": 1}


def safetensors(tensors: dict[str, tuple[str, int]]) -> bytes:
    """Return a file with tensors of these types and sizes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size // BYTES[dtype]], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


WEIGHTS = safetensors({"a": ("BF16", 4000), "b": ("F32", 400)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "data" / "models" / "stone"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / "model.safetensors").write_bytes(WEIGHTS)
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (place / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Stone\n")
    return place


def test_a_folder_tells_what_it_is(folder: Path) -> None:
    found = open_checkpoint(folder)
    assert (found.architecture, found.makes_text, found.context_length) == ("llama", True, 2048)
    assert (found.quantisation, found.weight_bytes, found.has_chat_template) == ("BF16", 4400, True)


def test_it_is_listed_and_can_be_added(folder: Path, tmp_path: Path) -> None:
    catalogue = Catalogue(load_settings({}, {}, tmp_path))
    (model,) = [model for model in catalogue.models() if model.id == "stone"]
    assert (model.licence, model.details["format"], model.details["quantisation"]) == (
        "apache-2.0",
        "safetensors",
        "BF16",
    )
    assert (model.details["context_tokens"], model.details["chat_template"]) == (2048, True)
    entry = add(catalogue, str(folder), "mine").entry
    assert catalogue.source_of(entry) == folder


def test_the_files_of_the_index_count(folder: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors").rename(folder / names[0])
    index = folder / "model.safetensors.index.json"
    with pytest.raises(ModelBroken, match=f"{index.name}, the index of its 2 weight files"):
        open_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    with pytest.raises(ModelBroken, match=names[1]):
        open_checkpoint(folder)
    (folder / names[1]).write_bytes(WEIGHTS)
    assert open_checkpoint(folder).weight_bytes == 8800
    index.write_text(json.dumps({"weight_map": {"a": "../../elsewhere.safetensors"}}))
    with pytest.raises(ModelBroken, match="outside its folder"):
        open_checkpoint(folder)
    index.write_text("{}")
    with pytest.raises(ModelBroken, match="has no weight_map"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><title>Sign in</title>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git-lfs pointer"),
        (b"PK\x03\x04" + bytes(99), "zip or pickle"),
        (WEIGHTS[:-1], "truncated"),
        (WEIGHTS[:20], "truncated"),
        (b"\x01\x02", "truncated"),
        (struct.pack("<Q", 4) + b"[[]]", "header is not valid"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "header is not valid"),
        (struct.pack("<Q", 2) + b"\xff\xff", "header is not valid"),
        (safetensors({"a": ("F32", 8)}).replace(b"[0, 8]", b"[8, 0]"), "ends before its start"),
    ],
)
def test_what_is_wrong_with_the_weights(folder: Path, tmp_path: Path, content: bytes, expected: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelBroken, match=expected):
        open_checkpoint(folder)
    (model,) = [one for one in Catalogue(load_settings({}, {}, tmp_path)).models() if one.id == "stone"]
    assert model.state == "broken" and model.reason and expected in model.reason and model.remedy


@pytest.mark.parametrize(
    ("text", "expected"), [(None, "has no config.json"), ("[]", "not a JSON object"), ("{", "is not JSON")]
)
def test_what_is_wrong_with_the_configuration(folder: Path, text: str | None, expected: str) -> None:
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    with pytest.raises(ModelBroken, match=expected):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "gpt2", "n_positions": 1024}, ("gpt2", 1024, "BF16")),
        ({"text_config": {"max_position_embeddings": 8192}}, (None, 8192, "BF16")),
        ({"model_type": "llama", "quantization_config": {"quant_method": "awq"}}, ("llama", None, "awq")),
        ({"model_type": 7, "max_position_embeddings": "many", "quantization_config": []}, (None, None, "BF16")),
    ],
)
def test_what_a_configuration_does_not_say_is_not_guessed(
    folder: Path, config: dict[str, Any], expected: tuple[str | None, int | None, str]
) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    found = open_checkpoint(folder)
    assert (found.architecture, found.context_length, found.quantisation) == expected


def test_with_a_tokenizer_it_runs_on_torch_if_it_makes_text(folder: Path, tmp_path: Path) -> None:
    def listed() -> tuple[str, list[str], str | None]:
        catalogue = Catalogue(load_settings({}, {}, tmp_path))
        model = next(model for model in catalogue.models() if model.id == "stone")
        return model.state, model.engines, model.remedy

    state, engines, remedy = listed()
    assert (state, engines) == ("broken", []) and remedy and remedy.startswith("Add its tokenizer.json to the folder")
    (folder / "tokenizer.json").write_text("{}")
    assert listed() == ("ready", ["transformers"], None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    state, _, remedy = listed()
    assert state == "broken" and remedy and "Choose a model for text generation" in remedy
