"""The GGUF header parser: its facts, its errors for other files, and its robustness against any bytes."""

from __future__ import annotations

import io
import os
import random
import struct
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from backend.common.errors import ModelBroken
from backend.common.formats.gguf import Header, Part, is_split_by_hand, parts, read_header, read_part
from backend.common.formats.gguf.kinds import check_kind
from backend.common.formats.gguf.reader import BLOCKS, REMOVED, Reader
from backend.engines._formats import GGUF

TEXT, LIST, U32, U16, BOOL, F32 = 8, 9, 4, 2, 7, 6
FACTS: list[tuple[str, int, Any]] = [
    ("general.architecture", TEXT, "llama"),
    ("general.name", TEXT, "Tiny Ü"),
    ("general.file_type", U32, 3),
    ("llama.context_length", U32, 512),
    ("tokenizer.ggml.tokens", LIST, ["<s>", "a" * 300, ""] * 40),
    ("tokenizer.ggml.add_bos_token", BOOL, True),
    ("tokenizer.chat_template", TEXT, "{{ messages }}" * 200),
]


def text(value: str, order: str) -> bytes:
    raw = value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def value(kind: int, item: Any, order: str) -> bytes:
    if kind == TEXT:
        return text(item, order)
    if kind == LIST:
        return struct.pack(order + "IQ", TEXT, len(item)) + b"".join(text(each, order) for each in item)
    return struct.pack(order + {U32: "I", U16: "H", BOOL: "?", F32: "f"}[kind], item)


def gguf(facts: list[tuple[str, int, Any]] = FACTS, version: int = 3, order: str = "<", tensors: int = 2) -> bytes:
    """Return a small valid GGUF file: `tensors` tensors of 64 x 2 weights in Q4_1, 80 bytes each."""
    head = b"GGUF" + struct.pack(order + "IQQ", version, tensors, len(facts))
    for key, kind, item in facts:
        head += text(key, order) + struct.pack(order + "I", kind) + value(kind, item, order)
    for index in range(tensors):
        head += text(f"blk.{index}", order) + struct.pack(order + "IQQIQ", 2, 64, 2, 3, 96 * index)
    return head + bytes(-len(head) % 32) + bytes(range(96)) * tensors


def moved(offset: int) -> bytes:
    """Return a file whose second tensor begins elsewhere."""
    return gguf().replace(struct.pack("<IQ", 3, 96), struct.pack("<IQ", 3, offset))


def shaped(width: int, rows: int) -> bytes:
    """Return a file whose first tensor has another shape."""
    return gguf().replace(struct.pack("<QQIQ", 64, 2, 3, 0), struct.pack("<QQIQ", width, rows, 3, 0))


def sized(name: str, size: int) -> bytes:
    """Return a file that declares a dimension."""
    return gguf([*FACTS, (f"llama.{name}", U32, size)])


def typed(kind: str) -> bytes:
    """Return a file that declares what it is."""
    return gguf([FACTS[0], ("general.type", TEXT, kind)])


def named(tensor: str) -> bytes:
    """Return a file without an architecture, with one tensor of a name."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text(tensor, "<") + struct.pack("<IQQIQ", 2, 64, 2, 3, 0)
    return head + bytes(-len(head) % 32) + bytes(96)


def of_type(kind: int) -> bytes:
    """Return a file whose first tensor has another type."""
    return gguf().replace(struct.pack("<QQIQ", 64, 2, 3, 0), struct.pack("<QQIQ", 64, 2, kind, 0))


def heads(count: int, kv_count: int, width: int) -> bytes:
    """Return a file that declares attention heads."""
    sizes = {"attention.head_count": count, "attention.head_count_kv": kv_count, "embedding_length": width}
    return gguf([*FACTS, *((f"llama.{name}", U32, size) for name, size in sizes.items())])


def part(number: int, count: int, tensors: int = 2, first: bool = False) -> bytes:
    """Return a part of a split model; `number` from 0. Only the first part has the facts of the model."""
    facts = [("split.no", U16, number), ("split.count", U16, count)]
    return gguf([*(FACTS if first else ()), *facts], tensors=tensors)


def write(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def refusal(path: Path) -> str:
    with pytest.raises(ModelBroken) as caught:
        read_header(path)
    assert caught.value.remedy.endswith((".", "f"))
    return f"{caught.value.detail} {caught.value.remedy}"


@pytest.mark.parametrize(("version", "order"), [(2, "<"), (3, "<"), (3, ">")])
def test_a_good_file(tmp_path: Path, version: int, order: str) -> None:
    data = gguf(version=version, order=order)
    header = read_header(write(tmp_path, data), "little" if order == "<" else "big")
    assert header == Header(
        version=version,
        architecture="llama",
        name="Tiny Ü",
        context_length=512,
        cache_bytes_per_token=None,
        has_chat_template=True,
        file_type=3,
        tensor_count=2,
        weight_bytes=160,
        file_bytes=len(data),
        split_count=1,
        weights=256,
    )


def test_facts_that_are_missing_are_unknown(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, gguf(FACTS[:1])))
    assert (header.name, header.context_length, header.file_type) == (None, None, None)
    assert header.has_chat_template is False


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html>\n<html><title>Sign in</title>", "a web page"),
        (b"\xef\xbb\xbf\r\n<HTML>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", "a git-lfs pointer"),
        (b"GGML" + gguf()[4:], "older format ggml"),
        (b"tjgg" + gguf()[4:], "older format ggjt"),
        (b"PK\x03\x04" + bytes(99), "never loaded"),
        (b"\x80\x02}q\x00", "never loaded"),
        (b"RIFF" + gguf()[4:], "starts with b'RIFF'"),
        (b"GGUF\x03", "truncated"),
        (gguf(version=99), "version 99; this version of Touchstone supports up to 3"),
        (gguf(version=1), "version 1;"),
        (gguf(order=">"), "big-endian"),
        (gguf(tensors=0), "contains no weights"),
        (gguf([FACTS[0], ("general.type", TEXT, "adapter")]), "is a LoRA adapter, not a language model"),
        (gguf([("general.architecture", TEXT, "clip")]), "is a projector for images or sound"),
        (typed("mmproj"), "is a projector for images or sound"),
        (typed("imatrix"), "is an importance matrix"),
        (typed("vocabulary"), "is of the type vocabulary, not a language model"),
        (gguf([("general.architecture", TEXT, "controlvector")]), "is a control vector"),
        *((gguf([("general.architecture", TEXT, name)]), "for images") for name in ("flux", "sd3", "sdxl", "lumina2")),
        (gguf([("general.architecture", TEXT, "wan")]), "for video"),
        (gguf([("general.architecture", TEXT, "whisper")]), "for speech recognition"),
        (gguf([("general.architecture", TEXT, "wavtokenizer-dec")]), "for speech synthesis"),
        (gguf([("general.architecture", TEXT, "bert")]), "is an encoder without pooling"),
        (gguf([("general.architecture", TEXT, "bert"), ("bert.pooling_type", U32, 4)]), "is a reranker"),
        (named("blk.0.attn_q.weight.lora_a"), "is a LoRA adapter"),
        (named("blk.0.attn_q.weight.in_sum2"), "is an importance matrix"),
        (named("model.diffusion_model.input"), "is a diffusion model for images"),
        (named("encoder.conv1.weight"), "is a model for speech recognition"),
        (named("v.patch_embd.weight"), "is a projector"),
        (gguf(FACTS[1:]), "does not name its architecture"),
        (gguf().replace(b"blk.1", b"blk.0"), "tensor 2 has the name of another one"),
        (of_type(4), "in a type that llama.cpp no longer reads (number 4)"),
        (of_type(38), "in a type that llama.cpp no longer reads (number 38)"),
        (of_type(77), "does not know (number 77; known up to 41). Update Touchstone"),
        (of_type(70_000), "has the type 70000, which does not exist"),
        (sized("block_count", 4_000_000_000), "declares llama.block_count as 4000000000"),
        (sized("attention.head_count", 4_000_000_000), "declares llama.attention.head_count as 4000000000"),
        (sized("embedding_length", 4_000_000_000), "declares llama.embedding_length as 4000000000"),
        (heads(8, 16, 64), "declares 8 attention heads, but 16 for keys and values"),
        (heads(128, 1, 64), "declares 128 attention heads for 64 values"),
        (gguf([*FACTS, ("llama.expert_count", U32, 8), ("llama.expert_used_count", U32, 9)]), "8 experts, of which 9"),
        (gguf([*FACTS, FACTS[0]]), "'general.architecture' is repeated"),
        (gguf([*FACTS, ("general.alignment", U32, 33)]), "alignment of 33"),
        (gguf()[:-40], "its weights end at byte"),
        (gguf() + bytes(32), "32 bytes are left after its weights"),
        (moved(0), "tensor 2 begins at byte 0 instead of 96 and overlaps"),
        (moved(64), "tensor 2 begins at byte 64 instead of 96 and overlaps"),
        (moved(128), "tensor 2 begins at byte 128 instead of 96 and leaves a gap"),
        (shaped(32, 2), "tensor 2 begins at byte 96 instead of 64 and leaves a gap"),
        (shaped(64, 4), "tensor 2 begins at byte 96 instead of 160 and overlaps"),
        (shaped(40, 2), "tensor 1 has rows of 40 weights, in blocks of 32"),
        (sized("attention.head_count", 0), "declares llama.attention.head_count as 0"),
        (sized("attention.head_count_kv", 0), "declares llama.attention.head_count_kv as 0"),
        (sized("block_count", 0), "declares llama.block_count as 0"),
        (sized("embedding_length", 0), "declares llama.embedding_length as 0"),
        (gguf()[:300], "truncated"),
        (gguf()[:8] + b"\xff" * 8 + gguf()[16:], "claims 18446744073709551615 tensors"),
        (gguf()[:16] + b"\xff" * 8 + gguf()[24:], "claims 18446744073709551615 entries"),
        (gguf()[:8] + struct.pack("<Q", 200_000) + gguf()[16:], "200000 tensors, more than the rest of the file"),
        (gguf().replace(b"blk.0\x02", b"blk.0\x05"), "claims 5 dimensions"),
    ],
)
def test_what_a_file_is_instead(tmp_path: Path, data: bytes, expected: str) -> None:
    assert expected in refusal(write(tmp_path, data))


def test_the_sizes_of_all_types_are_those_of_the_reference() -> None:
    gguf_package = pytest.importorskip("gguf")
    assert BLOCKS == {int(kind): size for kind, size in gguf_package.GGML_QUANT_SIZES.items()}
    assert not set(BLOCKS) & set(REMOVED)


@pytest.mark.parametrize(("kind", "per_block", "block_bytes"), [(40, 64, 36), (41, 128, 18), (39, 32, 17), (9, 32, 40)])
def test_half_of_a_file_is_refused_for_every_type(tmp_path: Path, kind: int, per_block: int, block_bytes: int) -> None:
    head = (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text(FACTS[0][0], "<") + struct.pack("<I", TEXT) + text("llama", "<")
    )
    head += text("output.weight", "<") + struct.pack("<IQQIQ", 2, per_block, 64, kind, 0)
    complete = head + bytes(-len(head) % 32) + bytes(-(-block_bytes * 64 // 32) * 32)
    assert read_header(write(tmp_path, complete)).weight_bytes == 64 * block_bytes
    assert "its weights end at byte" in refusal(write(tmp_path, complete[: len(complete) - 32 * block_bytes]))


def test_the_first_part_of_a_split_model_may_have_no_weights(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, part(0, 3, tensors=0, first=True)))
    assert (header.weight_bytes, header.split_count, header.split_number) == (0, 3, 0)
    assert read_part(write(tmp_path, part(1, 3))) == Part(1, 3)


@pytest.mark.parametrize(
    ("files", "asked", "expected"),
    [
        ((0, 1, 2), 1, None),
        ((0, 2), 1, "m-00001-of-00003.gguf is the first of 3 parts; part 2 is not in the same folder"),
        ((0,), 1, "parts 2, 3 are not in the same folder"),
        ((0, 1, 2), 3, "part 3 of 3 of a split model. Name the first part: m-00001-of-00003.gguf"),
        ((1, 2), 2, "m-00001-of-00003.gguf is the first of 3 parts; part 1 is not"),
    ],
)
def test_a_split_model_needs_all_parts(
    tmp_path: Path, files: tuple[int, ...], asked: int, expected: str | None
) -> None:
    for number in files:
        write(tmp_path, part(number, 3, first=number == 0), f"m-{number + 1:05}-of-00003.gguf")
    path = tmp_path / f"m-{asked:05}-of-00003.gguf"
    if expected is None:
        assert GGUF.validate
        GGUF.validate(path)
        return
    assert expected in part_refusal(path)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (part(1, 2)[:-40], "m-00002-of-00002.gguf is truncated: its weights end at byte"),
        (part(0, 2), "m-00002-of-00002.gguf is not part 2 of 2: it declares part 1 of 2."),
        (part(1, 3), "it declares part 2 of 3."),
        (gguf(), "it declares part 1 of None."),
        (b"", "is empty"),
    ],
)
def test_each_part_of_a_split_model_is_checked(tmp_path: Path, second: bytes, expected: str) -> None:
    first = write(tmp_path, part(0, 2, first=True), "m-00001-of-00002.gguf")
    write(tmp_path, second, "m-00002-of-00002.gguf")
    assert expected in part_refusal(first)


def test_a_first_part_under_another_name_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, part(0, 2, first=True), "big.gguf")
    assert "Rename it to NAME-00001-of-00002.gguf" in part_refusal(path)


def part_refusal(path: Path) -> str:
    assert GGUF.validate
    with pytest.raises(ModelBroken) as caught:
        GGUF.validate(path)
    return f"{caught.value.detail} {caught.value.remedy}"


def test_a_model_without_attention_declares_no_heads(tmp_path: Path) -> None:
    facts = [("general.architecture", TEXT, "mamba"), ("mamba.ssm.state_size", U32, 16)]
    heads = ("mamba.attention.head_count", U32, 0)
    assert read_header(write(tmp_path, gguf([*facts, heads]))).architecture == "mamba"


def test_padding_after_the_last_tensor_is_optional(tmp_path: Path) -> None:
    assert read_header(write(tmp_path, gguf()[:-16])).weight_bytes == 160


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "File not found" in refusal(tmp_path / "absent.gguf")
    assert "cannot be read" in refusal(tmp_path)
    assert "not a valid path" in refusal(tmp_path / "a\0b.gguf")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    other_end = os.open(tmp_path / "pipe.gguf", os.O_RDWR)
    threading.Timer(2.0, os.close, [other_end]).start()  # a blocked open fails the test, with a timeout
    assert "a pipe" in refusal(tmp_path / "pipe.gguf")
    assert "a device" in refusal(Path("/dev/zero"))


@pytest.mark.parametrize(
    "name", ["m.gguf.part1of2", "M.GGUF.part2of2", "m.gguf.part-a", "m.gguf-split-b", "m.gguf.001"]
)
def test_pieces_cut_by_hand_are_not_models(tmp_path: Path, name: str) -> None:
    assert is_split_by_hand(name)
    assert "Join the parts" in refusal(write(tmp_path, gguf(), name))


def test_how_to_join_names_every_piece(tmp_path: Path) -> None:
    said = refusal(write(tmp_path, gguf(), "a b.gguf.part1of2"))
    assert 'cat "a b.gguf.part1of2" "a b.gguf.part2of2" > "a b.gguf"' in said


@pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00002.gguf", "m.gguf.sha256", "part1of2.gguf"])
def test_other_names_are_not_pieces(name: str) -> None:
    assert not is_split_by_hand(name)


def parse(data: bytes) -> Header:
    """Parse a header in memory."""
    check_kind("model.gguf", data[:512], len(data), "little")
    return Reader(io.BytesIO(data), len(data), "model.gguf", "little").header()


def test_every_truncation_is_told() -> None:
    data = gguf()
    for length in [*range(0, len(data) - 16, 3), len(data) - 17]:  # the last 16 bytes only pad the last tensor
        with pytest.raises(ModelBroken):
            parse(data[:length])
    parse(data)


def test_damage_anywhere_never_upsets_the_reader() -> None:
    chance, complete = random.Random(7), gguf()
    read = broken = 0
    extremes = [b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\xff\xff\xff\xff", struct.pack("<Q", 1 << 40)]
    tracemalloc.start()
    slowest_s = 0.0
    for _ in range(3000):
        data = bytearray(complete)
        for _ in range(chance.randint(1, 4)):
            patch = chance.choice([*extremes, chance.randbytes(1), chance.randbytes(4)])
            at = chance.randrange(4, len(data) - len(patch))
            data[at : at + len(patch)] = patch
        begun = time.process_time()
        try:
            parse(bytes(data))
            read += 1
        except ModelBroken:
            broken += 1
        slowest_s = max(slowest_s, time.process_time() - begun)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read > 50 and broken > 50, "the damage must reach both sides to prove anything"
    assert peak_bytes < 2_000_000
    assert slowest_s < 1


def test_a_huge_list_of_empty_texts_is_refused_at_once(tmp_path: Path) -> None:
    count = 3_000_000
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("t", "<") + struct.pack("<IIQ", LIST, TEXT, count)
    path = write(tmp_path, data)
    with path.open("r+b") as file:
        file.truncate(len(data) + 8 * count + 100)
    begun = time.perf_counter()
    assert "texts in a list" in refusal(path)
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize(
    ("changes", "bytes_per_token"),
    [
        ({}, 30 * 3 * (64 + 64) * 2),  # SmolLM2-135M: llama.cpp logs 90 MiB for 4,096 tokens, which is this
        ({"llama.attention.head_count_kv": None}, 30 * 9 * (64 + 64) * 2),
        ({"llama.attention.key_length": 96, "llama.attention.value_length": 32}, 30 * 3 * (96 + 32) * 2),
        ({"llama.block_count": None}, None),
    ],
)
def test_the_cache_of_a_token_follows_from_the_shape(
    tmp_path: Path, changes: dict[str, int | None], bytes_per_token: int | None
) -> None:
    shape = {
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
        **changes,
    }
    facts = [*FACTS, *((key, U32, number) for key, number in shape.items() if number is not None)]
    assert read_header(write(tmp_path, gguf(facts))).cache_bytes_per_token == bytes_per_token


def test_a_model_split_by_its_tool_counts_whole(tmp_path: Path) -> None:
    names = [f"big [1]-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for name in [*names, "big [1]-00001-of-00002.gguf", "big 1-00002-of-00003.gguf"]:
        write(tmp_path, b"x", name)
    assert [part.name for part in parts(tmp_path / names[0])] == names
    assert parts(tmp_path / "one.gguf") == [tmp_path / "one.gguf"]
