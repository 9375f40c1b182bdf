"""Memory plans from headers: the layout of a model, where its layers fit, and what the user left open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.common.formats.gguf import read_layout
from backend.common.formats.gguf.layout import LayerMemory, Layout, make_layout
from backend.common.memory_plan import Corrections, DeviceRoom, Plan, PlanSettings, make_plan
from backend.common.memory_plan.buffers import ContextSize, cache_bytes, compute_bytes, system_bytes
from backend.common.memory_plan.planner import BASE_TOKENS
from tests.test_gguf import FACTS, U32, gguf

GB = 1_000_000_000
TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
LOTS = 10_000 * GB
NONE: dict[str, list[int]] = {}


def dense(size_gb: float, layers: int, cache_width: int = 1024, trained: int = 131_072) -> Layout:
    """Return the layout of a dense model: a table of 6 % for input and output each, the rest in equal layers."""
    table = int(size_gb * GB * 0.06)
    each = int((size_gb * GB - 2 * table) / layers)
    layer = LayerMemory(each, 0, each // 4, 0, cache_width, cache_width)
    return Layout("llama", (layer,) * layers, table, table, 128_256, 4096, 14_336, 32, 0, trained, True, 0, 128, 128)


def mixture(size_gb: float, layers: int) -> Layout:
    """Return the layout of a mixture of experts, which are 90 % of each layer."""
    model = dense(size_gb, layers, 512)
    each = model.layers[0].weight_bytes
    layer = replace(model.layers[0], expert_bytes=each * 9 // 10, largest_expert_bytes=each * 3 // 10)
    return replace(model, layers=(layer,) * layers, experts_used=8)


def most_layers(model: Layout, free: int) -> int:
    """Return how many layers fit, counted without the planner: the output layer first, then the last ones."""
    size = ContextSize(BASE_TOKENS, 1)
    for count in range(len(model.layers) + 1, 0, -1):
        placed = model.layers[len(model.layers) - (count - 1) :]
        left = model.layers[: len(model.layers) - (count - 1)]
        copied = max((layer.largest_bytes for layer in left), default=0)
        weights = model.output_bytes + sum(layer.weight_bytes for layer in placed)
        if weights + sum(cache_bytes(layer, size) for layer in placed) + compute_bytes(model, size) + copied <= free:
            return count
    return 0


@pytest.mark.parametrize("free_gb", [1.5, 3.5, 5.5, 7.2, 23.0])
@pytest.mark.parametrize(
    "model", [dense(0.4, 24, 128), dense(2.0, 28), dense(4.9, 32), dense(18.5, 64)], ids=["0.4", "2", "4.9", "18.5"]
)
def test_twenty_combinations_fit_within_one_layer_of_the_best(model: Layout, free_gb: float) -> None:
    free = int(free_gb * GB)
    plan = make_plan(model, [DeviceRoom("cuda:0", free)], 64 * GB)
    assert plan.fits
    assert plan.device_bytes <= free
    assert plan.system_bytes <= 64 * GB
    assert most_layers(model, free) - plan.gpu_layers in (0, 1)
    assert plan.gpu_layers == sum(share.layers for share in plan.shares)


def test_a_plan_explains_itself_with_its_arithmetic() -> None:
    model = dense(4.9, 32)
    whole = make_plan(model, [DeviceRoom("cuda:0", 8 * GB, 300_000_000)], 16 * GB, PlanSettings(slots=1))
    assert whole.is_whole
    assert whole.explain().startswith("cuda:0: 33 of 33 layers, 4.6 GB weights + ")
    assert "8.0 GB free" in whole.explain() and "System" not in whole.explain()
    part = make_plan(model, [DeviceRoom("cuda:0", 3 * GB)], 16 * GB)
    assert f"{part.gpu_layers} of 33 layers" in part.explain() and "System memory: " in part.explain()
    none = make_plan(model, [], 16 * GB)
    assert none.explain().startswith("System memory: 4.9 GB weights + ")


def test_several_devices_share_the_layers_by_memory() -> None:
    model = dense(18.5, 64)
    rooms = [DeviceRoom("cuda:0", 8 * GB), DeviceRoom("cuda:1", 24 * GB)]
    plan = make_plan(model, rooms, 64 * GB)
    small, large = plan.shares
    assert plan.is_whole and small.layers + large.layers == 65
    assert abs(small.needed_bytes / 8 - large.needed_bytes / 24) < 0.1 * GB
    single = make_plan(model, rooms, 64 * GB, PlanSettings(split="none"))
    assert [share.where for share in single.shares] == ["cuda:1"]
    tight = make_plan(model, [DeviceRoom("cuda:0", 2 * GB), DeviceRoom("cuda:1", 3 * GB)], 64 * GB)
    assert tight.fits and 0 < tight.gpu_layers < 65
    assert all(share.needed_bytes <= share.free_bytes for share in tight.shares)


def test_experts_move_to_system_memory_before_layers_do() -> None:
    model = mixture(18.5, 48)
    plan = make_plan(model, [DeviceRoom("cuda:0", 12 * GB)], 64 * GB)
    assert plan.fits and plan.gpu_layers == 49 and 0 < plan.expert_layers < 48
    fewer = make_plan(model, [DeviceRoom("cuda:0", 12 * GB)], 64 * GB, PlanSettings(experts="device"))
    assert fewer.expert_layers == 0 and fewer.gpu_layers < 49
    all_moved = make_plan(model, [DeviceRoom("cuda:0", 24 * GB)], 64 * GB, PlanSettings(experts="system"))
    assert all_moved.expert_layers == 48 and all_moved.gpu_layers == 49
    small = make_plan(model, [DeviceRoom("cuda:0", 2 * GB)], 64 * GB)
    assert small.fits and small.expert_layers in (0, 48) and small.device_bytes <= 2 * GB
    assert "The experts of" in plan.explain()
    total = sum(share.weight_bytes for share in plan.shares) + plan.system_weight_bytes
    assert abs(total - model.weight_bytes) < 1000


@pytest.mark.parametrize(("gpu_layers", "fits"), [(0, True), (5, True), (10, True), (33, False), (999, False)])
def test_a_number_of_layers_is_kept_and_never_reduced_in_silence(gpu_layers: int, fits: bool) -> None:
    plan = make_plan(dense(4.9, 32), [DeviceRoom("cuda:0", 3 * GB)], 64 * GB, PlanSettings(gpu_layers=gpu_layers))
    assert (plan.gpu_layers, plan.fits) == (min(gpu_layers, 33), fits)


def test_what_is_left_open_takes_a_share_of_the_memory_that_is_left() -> None:
    model = dense(4.9, 32)
    tight = make_plan(model, [DeviceRoom("cuda:0", 6 * GB)], 64 * GB)
    wide = make_plan(model, [DeviceRoom("cuda:0", 80 * GB)], 64 * GB)
    assert (tight.slots, tight.context_tokens) == (1, 4096)
    assert (wide.slots, wide.context_tokens) == (8, 32_768)
    assert wide.device_bytes < 80 * GB / 2 + 6 * GB
    fixed = make_plan(model, [DeviceRoom("cuda:0", 80 * GB)], 64 * GB, PlanSettings(slots=2))
    assert fixed.slots == 2 and fixed.context_tokens > 4096
    long = make_plan(model, [DeviceRoom("cuda:0", 80 * GB)], 64 * GB, PlanSettings(context_tokens=1000))
    assert long.context_tokens == 1000 and long.slots > 1
    trained = make_plan(dense(0.4, 24, trained=2048), [DeviceRoom("cuda:0", 80 * GB)], 64 * GB)
    assert trained.context_tokens == 2048
    processor = make_plan(dense(0.4, 24, 128), [], 16 * GB)
    assert (processor.slots, processor.context_tokens) == (4, 4096)


def test_a_context_shrinks_where_nothing_fits_otherwise() -> None:
    model = dense(2.0, 28, 4096)
    plan = make_plan(model, [], 3 * GB)
    assert plan.fits and 512 <= plan.context_tokens < 4096
    assert not make_plan(model, [], 3 * GB, PlanSettings(context_tokens=65_536)).fits
    assert not make_plan(model, [], GB).fits


def test_a_quantised_cache_is_smaller_and_refused_where_heads_do_not_divide() -> None:
    model = dense(4.9, 32)
    sizes = {}
    for kind in ("f16", "q8_0", "q4_0"):
        settings: Any = PlanSettings(kv_cache=kind, slots=1, context_tokens=4096)
        sizes[kind] = make_plan(model, [], LOTS, settings).system_cache_bytes
    assert sizes["q8_0"] == sizes["f16"] * 34 // 64 and sizes["q4_0"] == sizes["f16"] * 18 // 64
    odd = replace(model, key_head_width=80)
    assert make_plan(odd, [], LOTS, PlanSettings(kv_cache="q8_0")).kv_cache == "f16"
    assert "multiple of 32" in make_plan(odd, [], LOTS, PlanSettings(kv_cache="q8_0")).explain()
    slow = make_plan(model, [], LOTS, PlanSettings(kv_cache="q4_0", flash_attention=False))
    assert slow.kv_cache == "f16" and "flash attention" in slow.explain()


def test_measured_buffers_correct_the_next_plan() -> None:
    model = dense(4.9, 32)
    before = make_plan(model, [DeviceRoom("cuda:0", 4 * GB)], 64 * GB)
    after = make_plan(model, [DeviceRoom("cuda:0", 4 * GB)], 64 * GB, PlanSettings(), Corrections(compute=6.0))
    assert after.gpu_layers < before.gpu_layers
    driver = make_plan(model, [DeviceRoom("cuda:0", 4 * GB, 600_000_000)], 64 * GB)
    assert driver.gpu_layers < before.gpu_layers


def test_nothing_fits_a_card_without_memory() -> None:
    plan = make_plan(dense(4.9, 32), [DeviceRoom("cuda:0", 1_000_000)], 64 * GB)
    assert plan.fits and plan.gpu_layers == 0 and plan.shares == ()


def test_a_real_file_is_read_exactly() -> None:
    found = read_layout(TINY)
    assert found
    (layer,) = found.layers
    assert (layer.weight_bytes, layer.key_width, layer.value_width) == (5248, 16, 16)
    assert found.input_bytes == 8384 and found.shared_bytes == 8384
    assert found.output_bytes == 8384 + 64
    plan = make_plan(found, [], LOTS, PlanSettings(slots=2, context_tokens=128))
    assert plan.system_cache_bytes == 2 * 256 * 32 * 2
    assert plan.system_other_bytes == compute_bytes(found, ContextSize(128, 2)) + system_bytes()


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    metadata = [*FACTS, ("llama.block_count", U32, 1)]
    (tmp_path / "x-00001-of-00002.gguf").write_bytes(gguf([*metadata, ("split.count", U32, 2)]))
    (tmp_path / "x-00002-of-00002.gguf").write_bytes(gguf([]).replace(b"blk.1", b"blk.7"))
    found = read_layout(tmp_path / "x-00001-of-00002.gguf")
    assert found and found.output_bytes == 3 * 96


def caches(architecture: str, *, lists: dict[str, list[int]] = NONE, **sizes: int) -> list[int]:
    """Return the bytes that each layer caches for one sequence."""
    facts = {"block_count": 6, "embedding_length": 128, "attention.head_count": 4, "attention.head_count_kv": 2}
    facts |= {name.replace("__", "."): size for name, size in sizes.items()}
    named = {f"{architecture}.{name}": values for name, values in lists.items()}
    integers = {f"{architecture}.{name}": size for name, size in facts.items() if f"{architecture}.{name}" not in named}
    model = make_layout(integers, named, {}, [128, 262], architecture)
    assert model and model.caches_are_known
    return [cache_bytes(layer, ContextSize(8192, 1)) for layer in model.layers]


# The sums are those that llama.cpp logs for such files (xllamacpp 2026.10.11549, two sequences of 8,192 tokens).
MIB = 1 << 20


def test_sliding_windows_follow_the_architecture() -> None:
    windowed, full = 1024 * 128 * 2, 8192 * 128 * 2
    assert caches("gemma3", attention__sliding_window=512) == [windowed] * 5 + [full]
    assert 2 * sum(caches("gemma3", attention__sliding_window=512)) == int(6.5 * MIB)
    half = caches("gpt-oss", attention__sliding_window=128)
    assert half == [768 * 256, full] * 3
    assert caches("smallthinker", attention__sliding_window=512) == [full, *[windowed] * 3, full, windowed]
    assert caches("qwen2", attention__sliding_window=512) == [full] * 6
    pattern = {"attention.sliding_window_pattern": [1, 1, 0, 1, 1, 0]}
    assert caches("new", lists=pattern, attention__sliding_window=512) == [windowed, windowed, full] * 2
    assert caches("gemma2")[0] == (4096 + 512) * 256


def test_compressed_attention_caches_no_values() -> None:
    found = caches(
        "deepseek2",
        attention__head_count_kv=1,
        attention__key_length=80,
        attention__value_length=64,
        attention__key_length_mla=48,
    )
    assert 2 * sum(found) == 15 * MIB


def test_recurrent_layers_keep_a_state_for_each_sequence() -> None:
    mamba = caches("mamba", attention__head_count=0, ssm__conv_kernel=4, ssm__inner_size=256, ssm__state_size=16)
    assert mamba == [4 * (3 * 256 + 16 * 256)] * 6
    heads = {"attention.head_count_kv": [0, 0, 2, 0, 0, 2]}
    assert caches("lfm2", lists=heads, shortconv__l_cache=3) == [1024, 1024, 4 * MIB // 2] * 2
    found = caches("qwen3next", ssm__group_count=1, ssm__conv_kernel=4, ssm__inner_size=256, ssm__state_size=16)
    assert found[3] == 8192 * 128 * 2 and found[0] == found[2] == found[5] == 4 * (3 * 288 + 4096)
    assert caches("rwkv6", wkv__head_size=64) == [4 * 128 * 66] * 6


def test_shared_and_predicting_layers_cache_nothing() -> None:
    assert caches("gemma3n", attention__shared_kv_layers=2)[-2:] == [0, 0]
    assert caches("glm4moe", nextn_predict_layers=1)[-1] == 0
    assert caches("bert") == [0] * 6


def test_an_unknown_cache_is_not_guessed() -> None:
    facts = {"new.block_count": 2, "new.embedding_length": 64, "new.attention.head_count": 2}
    for key in ("new.ssm.state_size", "new.attention.indexer.head_count"):
        found = make_layout({**facts, key: 3}, {}, {}, [64, 10], "new")
        assert found and not found.caches_are_known
    assert make_layout({"new.block_count": 10**15}, {}, {}, [], "new") is None


def test_hostile_dimensions_neither_raise_nor_shrink_a_plan() -> None:
    facts = {"llama.block_count": 3, "llama.embedding_length": 64, "llama.attention.head_count": 2}
    lists = {"llama.attention.head_count_kv": [-5, 2**62, 0]}
    found = make_layout(facts, lists, {"blk.9.x": 4, "blk.0.y": 40}, [], "llama")
    assert found
    assert found.layers[0].key_width == 0
    plan: Plan = make_plan(found, [DeviceRoom("cuda:0", 8 * GB)], 64 * GB)
    assert not plan.fits
