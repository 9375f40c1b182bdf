"""Settings of model folders in all spellings: templates, special tokens, end tokens, cache sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.common.errors import ModelBroken, ModelIncompatible
from backend.engines._onnx.genai_config import GenaiFolder
from backend.engines._openvino.model_files import GRAPH, VOCABULARY, WEIGHTS, open_folder
from backend.engines._text.tokenizer_files import TokenizerFolder, read_json
from backend.engines._torch.model_files import open_model_files, open_tokenizer
from tests.test_safetensors import safetensors


def write(folder: Path, **files: Any) -> Path:
    """Write JSON files, or text files if the content is a text. `__` in a name is a dot."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


# Tokenizer files


def test_a_template_file_wins_over_the_settings_and_the_settings_over_the_old_file(tmp_path: Path) -> None:
    write(tmp_path, chat_template__json={"chat_template": "old"})
    assert TokenizerFolder(tmp_path).chat_template == "old"
    write(tmp_path, tokenizer_config__json={"chat_template": "settings"})
    assert TokenizerFolder(tmp_path).chat_template == "settings"
    write(tmp_path, chat_template__jinja="fi\u00e9l")
    assert TokenizerFolder(tmp_path).chat_template == "fi\u00e9l"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
        ([{"name": "default", "template": 5}, "odd"], None),
        ([], None),
        (7, None),
        ("", ""),
    ],
)
def test_of_several_templates_the_default_one_is_taken(tmp_path: Path, template: Any, expected: str | None) -> None:
    write(tmp_path, tokenizer_config__json={"chat_template": template})
    assert TokenizerFolder(tmp_path).chat_template == expected


def test_a_folder_without_tokenizer_files_has_no_template_and_no_special_tokens(tmp_path: Path) -> None:
    folder = TokenizerFolder(tmp_path)
    assert folder.chat_template is None and folder.names == {} and folder.control_marks == []
    assert not folder.begins_with_bos


def test_special_tokens_are_read_as_texts_and_as_objects(tmp_path: Path) -> None:
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}, "pad_token": None, "unk_token": {}}
    assert TokenizerFolder(write(tmp_path, tokenizer_config__json=names)).names == {
        "bos_token": "<s>",
        "eos_token": "</s>",
    }


def test_only_special_tokens_of_both_files_are_control_tokens(tmp_path: Path) -> None:
    added = [{"content": "<a>", "special": True}, {"content": "word", "special": False}, {"content": 3, "special": 1}]
    decoder = {"7": {"content": "<b>", "special": True}, "8": {"content": "plain"}, "9": "odd"}
    write(tmp_path, tokenizer__json={"added_tokens": added}, tokenizer_config__json={"added_tokens_decoder": decoder})
    assert TokenizerFolder(tmp_path).control_marks == ["<a>", "<b>"]


@pytest.mark.parametrize(
    ("settings", "processor", "expected"),
    [
        ({"add_bos_token": True}, None, True),
        ({"add_bos_token": False}, {"single": [{"SpecialToken": {"id": "<s>"}}]}, False),
        ({}, {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}]}, True),
        ({}, {"single": [{"Sequence": {}}, {"SpecialToken": {"id": "</s>"}}]}, False),  # a token at the end
        ({}, {"processors": [{"type": "ByteLevel"}, {"single": [{"SpecialToken": {}}]}]}, True),
        ({}, {"single": []}, False),
        ({"add_bos_token": None}, None, False),
    ],
)
def test_whether_a_text_begins_with_bos_is_read_from_the_settings_or_the_post_processor(
    tmp_path: Path, settings: Any, processor: Any, expected: bool
) -> None:
    write(tmp_path, tokenizer_config__json=settings, tokenizer__json={"post_processor": processor})
    assert TokenizerFolder(tmp_path).begins_with_bos is expected


def test_a_template_that_is_not_utf_8_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"{{ messages }}\xff")
    with pytest.raises(ModelBroken, match=r"chat_template\.jinja is not UTF-8 text"):
        TokenizerFolder(tmp_path).chat_template  # noqa: B018 (a property)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("", "not JSON"), ("{", "not JSON"), ("[]", "not a JSON object"), ("5", "not a JSON object"), ("nul", "not JSON")],
)
def test_a_damaged_file_is_named_with_its_folder(tmp_path: Path, content: str, reason: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder, x__json=content)
    with pytest.raises(ModelBroken, match=f"model/x.json is {reason}"):
        read_json(folder / "x.json")


def test_a_missing_file_is_the_default_or_an_error(tmp_path: Path) -> None:
    assert read_json(tmp_path / "x.json", missing={"a": 1}) == {"a": 1}
    with pytest.raises(ModelBroken, match="has no x.json"):
        read_json(tmp_path / "x.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ModelBroken, match="cannot be read"):
        read_json(tmp_path / "folder.json")


# ONNX Runtime GenAI


@pytest.mark.parametrize(
    ("model", "ends", "length", "vocabulary"),
    [
        ({"eos_token_id": 5, "context_length": 2048, "vocab_size": 100}, {5}, 2048, 100),
        ({"eos_token_id": [5, 7], "context_length": 0}, {5, 7}, None, None),
        ({"eos_token_id": "5", "context_length": "2048", "vocab_size": "100"}, set(), None, None),
        ({"context_length": -1}, set(), None, None),
    ],
)
def test_a_genai_configuration_is_read_where_its_values_have_the_right_type(
    tmp_path: Path, model: Any, ends: set[int], length: int | None, vocabulary: int | None
) -> None:
    folder = GenaiFolder(tmp_path, {"model": model})
    assert folder.ends == ends and folder.context_length == length and folder.vocabulary_size == vocabulary


def test_the_cache_of_a_genai_model_counts_keys_and_values_of_all_layers_in_four_bytes(tmp_path: Path) -> None:
    decoder = {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_size": 16, "filename": "model.onnx"}
    folder = GenaiFolder(write(tmp_path, model__onnx="12345", other="678"), {"model": {"decoder": decoder}})
    assert folder.cache_bytes_per_token == 3 * 2 * 16 * 2 * 4
    (tmp_path / "sub").mkdir()
    assert folder.file_bytes == 8 and folder.graph == tmp_path / "model.onnx"


# OpenVINO


def openvino_folder(tmp_path: Path, config: Any, **files: Any) -> Path:
    """Return a complete folder with this configuration."""
    (tmp_path / GRAPH).write_text("<net/>")
    (tmp_path / WEIGHTS).write_bytes(b"\0" * 10)
    (tmp_path / VOCABULARY).write_text("{}")
    return write(tmp_path, config__json=config, **files)


@pytest.mark.parametrize(
    ("config", "cache_bytes"),
    [
        ({"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 64}, 2 * 2 * 2 * 64),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 2, "hidden_size": 64},
            2 * 2 * 2 * 16,
        ),
        ({"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": 64, "head_dim": 32}, 2 * 2 * 2 * 4 * 32),
        ({"n_head": 4, "n_layer": 2, "n_embd": 64}, 2 * 2 * 2 * 64),  # GPT-2's names
        ({"num_attention_heads": 4, "hidden_size": 64}, None),
        ({"num_attention_heads": 0, "num_hidden_layers": 2, "hidden_size": 64}, None),
    ],
)
def test_the_cache_of_an_openvino_model_is_computed_from_its_sizes(
    tmp_path: Path, config: Any, cache_bytes: int | None
) -> None:
    folder = open_folder(openvino_folder(tmp_path, config))
    assert folder.cache_bytes_per_token == cache_bytes and folder.weight_bytes == 10


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "ends"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 9}, {}, [1, 2]),
        ({}, {"eos_token_id": 9}, {"eos_token": "</s>"}, [9, "</s>"]),
        ({"eos_token_id": None}, {"eos_token_id": 9}, {}, []),
        ({}, {}, {"eos_token": {"content": "<end>"}}, ["<end>"]),
    ],
)
def test_end_tokens_come_from_the_generation_settings_first(
    tmp_path: Path, generation: Any, config: Any, tokenizer: Any, ends: list[int | str]
) -> None:
    openvino_folder(tmp_path, config, generation_config__json=generation, tokenizer_config__json=tokenizer)
    assert open_folder(tmp_path).ends == ends


def test_the_context_of_an_openvino_model_has_two_names(tmp_path: Path) -> None:
    assert open_folder(openvino_folder(tmp_path, {"max_position_embeddings": 4096})).context_length == 4096
    write(tmp_path, config__json={"max_position_embeddings": "many", "n_positions": 1024, "vocab_size": 7})
    folder = open_folder(tmp_path)
    assert folder.context_length == 1024 and folder.vocabulary_size == 7


# Transformers


SIZES = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4}


def checkpoint(tmp_path: Path, config: Any, **files: Any) -> Path:
    """Return a folder of safetensors with 1,000 float32 and 600 bfloat16 weights."""
    weights = {"a": ("F32", 4000), "b": ("BF16", 1200)}
    (tmp_path / "model.safetensors").write_bytes(safetensors(weights))
    return write(tmp_path, config__json={**SIZES, "num_hidden_layers": 2, **config}, **files)


def test_weights_are_counted_by_their_types_and_the_text_part_has_the_sizes(tmp_path: Path) -> None:
    source = open_model_files(checkpoint(tmp_path, {"num_key_value_heads": 2, "max_position_embeddings": 300}))
    assert (source.parameter_count, source.cache_values, source.context_length) == (1600, 2 * 2 * 2 * 16, 300)
    nested = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    assert open_model_files(checkpoint(tmp_path, {"text_config": nested})).cache_values == 2 * 8


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 5}, [3, 4, "</s>"]),
        ({"eos_token_id": None}, {"eos_token_id": 5}, [5, "</s>"]),
        (None, {"eos_token_id": 5}, [5, "</s>"]),
        (None, {}, ["</s>"]),
    ],
)
def test_the_ends_of_a_checkpoint_are_its_declared_ids_and_its_written_token(
    tmp_path: Path, generation: Any, config: Any, ends: list[int | str]
) -> None:
    files = {} if generation is None else {"generation_config__json": generation}
    tokenizer = {"eos_token": "</s>", "bos_token": "<s>", "add_bos_token": True}
    checkpoint(tmp_path, config, tokenizer__json={}, tokenizer_config__json=tokenizer, **files)
    words = open_tokenizer(tmp_path)
    assert words.ends == ends and words.begin == "<s>" and words.tokenizer_json == "{}"


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_generation_settings_are_named(tmp_path: Path, content: str) -> None:
    checkpoint(tmp_path, {}, tokenizer__json={}, generation_config__json=content)
    with pytest.raises(ModelBroken, match=r"generation_config\.json is not"):
        open_tokenizer(tmp_path)


def test_a_checkpoint_with_another_kind_of_tokenizer_is_incompatible(tmp_path: Path) -> None:
    with pytest.raises(ModelIncompatible, match="no tokenizer.json"):
        open_tokenizer(checkpoint(tmp_path, {}))
