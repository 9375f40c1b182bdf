"""The tokenizer of a GGUF file: lists of any length, damaged ones, split names, and its form as tokenizer.json."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ModelBroken, ModelIncompatible
from backend.common.formats.gguf.kinds import PICKLES, check_foreign, part_names
from backend.common.formats.gguf.tokenizer import tokenizer_json, write
from backend.common.formats.gguf.vocabulary import Vocabulary, read_vocabulary

STRING, LIST, U32, I32, BOOL = 8, 9, 4, 5, 7
FEW = settings(max_examples=40, derandomize=True, database=None, deadline=None)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def texts(key: str, items: list[str]) -> bytes:
    return entry(key, LIST, struct.pack("<IQ", STRING, len(items)) + b"".join(map(text, items)))


def numbers(key: str, items: list[int]) -> bytes:
    return entry(key, LIST, struct.pack(f"<IQ{len(items)}i", I32, len(items), *items))


def saved(folder: Path, *entries: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    return path


def read(path: Path, merges: bool = True) -> Vocabulary:
    return read_vocabulary(path, merges, byteorder="little")


WHOLE = (
    entry("general.name", STRING, text("skipped")),
    entry("tokenizer.ggml.model", STRING, text("gpt2")),
    entry("tokenizer.ggml.pre", STRING, text("smollm")),
    texts("tokenizer.ggml.tokens", ["<|endoftext|>", "a", "b", "ab", "ü"]),
    numbers("tokenizer.ggml.token_type", [3, 1, 1, 1, 4]),
    texts("tokenizer.ggml.merges", ["a b"]),
    entry("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 0)),
    entry("tokenizer.ggml.padding_token_id", U32, struct.pack("<I", 99)),
    entry("tokenizer.ggml.add_bos_token", BOOL, b"\x00"),
    entry("tokenizer.chat_template", STRING, text("{{ messages }}" * 500)),
)


def test_a_tokenizer_is_read_with_its_long_texts(tmp_path: Path) -> None:
    vocabulary = read(saved(tmp_path, *WHOLE))
    assert (vocabulary.model, vocabulary.pre, vocabulary.add_bos) == ("gpt2", "smollm", False)
    assert vocabulary.tokens == ["<|endoftext|>", "a", "b", "ab", "ü"]
    assert vocabulary.types == [3, 1, 1, 1, 4] and vocabulary.merges == ["a b"]
    assert vocabulary.chat_template == "{{ messages }}" * 500
    assert vocabulary.control_marks() == ["<|endoftext|>"]


def test_a_special_token_has_a_text_only_if_its_id_exists(tmp_path: Path) -> None:
    vocabulary = read(saved(tmp_path, *WHOLE))
    assert vocabulary.text("eos") == "<|endoftext|>"
    assert vocabulary.text("pad") is None, "its id is outside the vocabulary"
    assert vocabulary.text("bos") is None, "the file declares none"


def test_merges_are_skipped_where_they_are_not_needed(tmp_path: Path) -> None:
    vocabulary = read(saved(tmp_path, *WHOLE), merges=False)
    assert vocabulary.merges == [] and len(vocabulary.tokens) == 5 and vocabulary.text("eos")


def test_a_file_without_a_tokenizer_has_an_empty_one(tmp_path: Path) -> None:
    vocabulary = read(saved(tmp_path, WHOLE[0]))
    assert (vocabulary.model, vocabulary.tokens, vocabulary.special, vocabulary.chat_template) == (None, [], {}, None)


def test_tokens_on_both_sides_of_a_block_are_joined(tmp_path: Path) -> None:
    tokens = ["x" * 700_000, "y" * 700_000, "z" * 2_500_000, "", "end"]
    assert read(saved(tmp_path, texts("tokenizer.ggml.tokens", tokens))).tokens == tokens


@FEW
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=30))
def test_any_texts_are_read_back(tmp_path_factory: pytest.TempPathFactory, tokens: list[str]) -> None:
    path = saved(tmp_path_factory.mktemp("gguf"), texts("tokenizer.ggml.tokens", tokens))
    assert read(path).tokens == tokens


def test_bytes_that_are_not_utf_8_are_replaced(tmp_path: Path) -> None:
    payload = struct.pack("<IQ", STRING, 1) + text(b"\xff\xfe")
    assert read(saved(tmp_path, entry("tokenizer.ggml.tokens", LIST, payload))).tokens == ["\ufffd\ufffd"]


@pytest.mark.parametrize("length", [100, 2**40, 2**62, 2**64 - 1])
def test_a_token_longer_than_the_file_is_refused_without_memory_for_it(tmp_path: Path, length: int) -> None:
    payload = struct.pack("<IQ", STRING, 1) + struct.pack("<Q", length) + b"abc"
    with pytest.raises(ModelBroken, match="truncated"):
        read(saved(tmp_path, entry("tokenizer.ggml.tokens", LIST, payload)))


@pytest.mark.parametrize("count", [1000, 3_999_999, 2**40])
@pytest.mark.parametrize("kind", [STRING, I32])
def test_a_list_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path, count: int, kind: int) -> None:
    payload = struct.pack("<IQ", kind, count) + bytes(100)
    with pytest.raises(ModelBroken, match="more than"):
        read(saved(tmp_path, entry("tokenizer.ggml.tokens", LIST, payload)))


def test_a_list_of_lists_is_damage(tmp_path: Path) -> None:
    payload = struct.pack("<IQ", LIST, 1) + bytes(100)
    with pytest.raises(ModelBroken, match="unknown type 9"):
        read(saved(tmp_path, entry("tokenizer.ggml.tokens", LIST, payload)))


def test_a_file_cut_anywhere_in_its_tokenizer_is_truncated(tmp_path: Path) -> None:
    path = saved(tmp_path, *WHOLE)
    whole = path.read_bytes()
    for length in range(24, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelBroken, match="truncated"):
            read(path)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("x.gguf", ["x.gguf"]),
        ("x-00002-of-00003.gguf", [f"x-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
        ("X-00001-of-00001.GGUF", ["X-00001-of-00001.gguf"]),
        ("x-1-of-2.gguf", ["x-1-of-2.gguf"]),
    ],
)
def test_parts_of_a_split_model_are_named_in_order(name: str, names: list[str]) -> None:
    assert part_names(name) == names


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"\xef\xbb\xbf  <!DOCTYPE html>", "web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied', "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git-lfs pointer"),
        (b"PK\x03\x04archive/data.pkl", "zip or pickle"),
        (b"\x80\x02}q\x00", "zip or pickle"),
    ],
)
def test_what_was_saved_instead_of_a_model_is_named(start: bytes, expected: str) -> None:
    with pytest.raises(ModelBroken, match=expected):
        check_foreign("model.bin", start, len(start))


def test_a_model_may_start_with_any_other_bytes() -> None:
    for start in (b"GGUF", b"\x08\x07", b"\x80\x09", b"P\x00", b"\x40\x01\x00\x00\x00\x00\x00\x00{"):
        check_foreign("model", start, 100)
    assert ".bin" in PICKLES and ".gguf" not in PICKLES


def vocabulary(**changes: Any) -> Vocabulary:
    facts: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": ["<|im_end|>", "a", "b", "ab", "mark"],
        "types": [3, 1, 1, 1, 4],
        "merges": ["a b"],
        "special": {"eos": 0},
        **changes,
    }
    return Vocabulary(**facts)


def test_control_and_user_tokens_are_added_and_only_control_tokens_are_special() -> None:
    added = tokenizer_json(vocabulary())["added_tokens"]
    assert [(token["id"], token["content"], token["special"]) for token in added] == [
        (0, "<|im_end|>", True),
        (4, "mark", False),
    ]


@pytest.mark.parametrize("change", [{"model": "llama"}, {"pre": "tekken"}, {"pre": None}, {"merges": []}])
def test_a_tokenizer_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelIncompatible, match="cannot be converted"):
        tokenizer_json(vocabulary(**change))


@pytest.mark.parametrize("pre", ["gpt-2", "default", "smollm", "llama-bpe", "qwen2"])
def test_ids_and_merges_stay_as_in_the_file(pre: str) -> None:
    content = tokenizer_json(vocabulary(pre=pre))
    assert content["model"]["vocab"] == {"<|im_end|>": 0, "a": 1, "b": 2, "ab": 3, "mark": 4}
    assert content["model"]["merges"] == [["a", "b"]]
    assert json.loads(json.dumps(content)) == content


def test_digits_are_split_as_each_model_was_trained() -> None:
    def pattern(pre: str) -> str:
        (split, _) = tokenizer_json(vocabulary(pre=pre))["pre_tokenizer"]["pretokenizers"]
        return str(split["pattern"]["Regex"])

    assert r"\p{N}{1,3}" in pattern("llama-bpe")
    assert r"\p{N}" in pattern("qwen2") and "{1,3}" not in pattern("qwen2")


def test_the_configuration_names_only_special_tokens_that_exist(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    write(vocabulary(special={"eos": 0, "pad": 77}, chat_template="{{ x }}"), folder, 4096)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>" and "pad_token" not in config and "bos_token" not in config
    assert config["model_max_length"] == 4096
    assert (folder / "chat_template.jinja").read_text() == "{{ x }}"
