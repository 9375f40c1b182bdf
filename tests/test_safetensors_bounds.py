"""Headers of safetensors that lie: offsets, lengths and types that a library never writes."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import ModelBroken
from backend.common.formats.safetensors import Checkpoint, is_checkpoint, is_variant, open_checkpoint

CONFIG = json.dumps({"model_type": "llama"})


def file_of(header: Any, weights: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(weights)


def opened(folder: Path, data: bytes, config: str = CONFIG) -> Checkpoint:
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(data)
    return open_checkpoint(folder)


def refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(ModelBroken) as caught:
        opened(folder, data)
    assert caught.value.remedy
    return caught.value.detail


def tensor(*offsets: Any, dtype: Any = "F32", shape: Any = (1,)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    "header",
    [
        tensor(0),
        tensor(0, 4, 8),
        tensor("zero", 4),
        tensor(None, 4),
        b'{"w": {"dtype": "F32", "data_offsets": [0, 1e999]}}',
        b'{"w": {"dtype": "F32", "data_offsets": [NaN, 4]}}',
        {"w": {"dtype": "F32"}},
        {"w": {"dtype": "F32", "data_offsets": [0, 4]}},
        tensor(0, 4, shape=[-1]),
        tensor(0, 4, shape=["one"]),
        {"w": [0, 4]},
        {"w": None},
        [1, 2],
        b"[" * 5000,
        b'{"w": ',
        b"\xff\xfe",
    ],
    ids=lambda header: repr(header)[:40],
)
def test_a_header_that_names_no_offsets_is_not_valid(tmp_path: Path, header: Any) -> None:
    assert "its header is not valid" in refusal(tmp_path, file_of(header, 16))


def test_offsets_out_of_order_are_damage(tmp_path: Path) -> None:
    assert "ends before its start" in refusal(tmp_path, file_of(tensor(8, 4), 16))
    assert "ends before its start" in refusal(tmp_path, file_of(tensor(-4, 4), 16))


def two(first: tuple[int, int], second: tuple[int, int]) -> bytes:
    header = {name: tensor(*at)["w"] for name, at in (("a", first), ("b", second))}
    return file_of(header, 8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (two((0, 4), (0, 4)), "begins at byte 0 instead of 4 and overlaps"),
        (two((0, 4), (2, 6)), "begins at byte 2 instead of 4 and overlaps"),
        (two((0, 2), (4, 8)), "the shape of a tensor needs 4 bytes, but it has 2"),
        (file_of(tensor(4, 8), 8), "begins at byte 4 instead of 0 and leaves a gap"),
        (file_of(tensor(0, 4, shape=[2]), 4), "the shape of a tensor needs 8 bytes, but it has 4"),
        (file_of(tensor(0, 4), 5), "1 bytes are left after its tensors"),
    ],
)
def test_tensors_that_contradict_each_other_or_the_file_are_damage(tmp_path: Path, data: bytes, expected: str) -> None:
    assert expected in refusal(tmp_path, data)


@pytest.mark.parametrize("end", [17, 2**40, 2**70])
def test_weights_after_the_end_of_the_file_mean_a_broken_download(tmp_path: Path, end: int) -> None:
    assert "truncated" in refusal(tmp_path, file_of(tensor(0, end), 16))


@pytest.mark.parametrize("length", [9, 2**32, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_not_read(tmp_path: Path, length: int) -> None:
    assert "truncated" in refusal(tmp_path, struct.pack("<Q", length) + b"{}")


def test_a_header_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 3_000_000_000))
    os.truncate(path, 3_000_000_100)  # a sparse file
    with pytest.raises(ModelBroken, match="header is too long"):
        open_checkpoint(tmp_path)


@settings(max_examples=50, derandomize=True, database=None, deadline=None)
@given(st.binary(max_size=120))
def test_random_bytes_are_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    try:
        opened(tmp_path_factory.mktemp("weights"), data)
    except ModelBroken as error:
        assert error.detail.endswith(".")


def test_a_file_without_tensors_has_no_weights(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, file_of({"__metadata__": {"format": "pt"}}))
    assert (checkpoint.weight_bytes, checkpoint.numbers, checkpoint.quantisation) == (0, 0, None)


def test_numbers_of_weights_follow_from_their_types(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]},
        "b": {"dtype": "BF16", "shape": [2, 5], "data_offsets": [40, 60]},
        "c": {"dtype": "U8", "shape": [7], "data_offsets": [60, 67]},
    }
    checkpoint = opened(tmp_path, file_of(header, 67))
    assert (checkpoint.numbers, checkpoint.weight_bytes, checkpoint.quantisation) == (10 + 10 + 7, 67, "F32")


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    assert opened(tmp_path, file_of(tensor(0, 4), 4)).weight_bytes == 4
    assert opened(tmp_path, file_of(tensor(0, 8, shape=[2]), 8)).weight_bytes == 8


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 0, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": "many"}, None),
        ({"text_config": {"max_position_embeddings": 32768}}, 32768),
        ({"text_config": "llama", "max_seq_len": 2048}, 2048),
    ],
)
def test_the_context_length_is_a_positive_number_or_unknown(tmp_path: Path, config: Any, tokens: int | None) -> None:
    assert opened(tmp_path, file_of({}), json.dumps(config)).context_length == tokens


def test_a_quantization_method_is_named_before_the_type_of_the_weights(tmp_path: Path) -> None:
    packed = json.dumps({"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert opened(tmp_path, file_of(tensor(0, 4, dtype="I32"), 4), packed).quantisation == "gptq"
    odd = json.dumps({"quantization_config": {"quant_method": 4}})
    assert opened(tmp_path, file_of(tensor(0, 4, dtype="I32"), 4), odd).quantisation == "I32"


def test_copies_in_other_types_are_left_out_while_there_is_a_main_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.fp16.safetensors").write_bytes(file_of(tensor(0, 2, dtype="F16"), 2))
    assert open_checkpoint(tmp_path).weight_bytes == 2, "the only file counts, whatever its name"
    (tmp_path / "model.safetensors").write_bytes(file_of(tensor(0, 4), 4))
    assert open_checkpoint(tmp_path).weight_bytes == 4
    assert is_variant("unet.bf16-00001-of-00002.safetensors") and not is_variant("fp16_model.safetensors")


def test_shards_without_their_index_name_the_missing_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model-00001-of-00003.safetensors").write_bytes(file_of({}))
    with pytest.raises(ModelBroken, match="index of its 3 weight files") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.extra["missing"] == "model.safetensors.index.json"


@pytest.mark.parametrize("name", ["../other.safetensors", "a/b.safetensors", "..\\x.safetensors", "/etc/passwd"])
def test_an_index_may_not_name_files_outside_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(ModelBroken, match="outside its folder"):
        open_checkpoint(tmp_path)


def test_a_pipe_instead_of_weights_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ModelBroken):
        open_checkpoint(tmp_path)


def test_a_folder_with_weights_is_a_checkpoint_and_a_file_is_not(tmp_path: Path) -> None:
    assert not is_checkpoint(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"")
    assert is_checkpoint(tmp_path) and not is_checkpoint(tmp_path / "x.safetensors")
