"""The measured sizes of buffers: kept between servers, per build and backend, and never trusted beyond limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.common.memory_plan import Corrections
from backend.common.types import MeasuredBuffers, MemoryFit, Placement, PlacementPart
from backend.jobs.receipt import counts_as_device, is_too_low, judge_placement
from backend.scheduling.buffer_history import BufferHistory


def test_the_highest_measurement_of_a_build_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "buffers.json"
    history = BufferHistory(file)
    history.add(MeasuredBuffers("b 1", "cuda", 0.8, 100))
    history.add(MeasuredBuffers("b 1", "cuda", 1.2, None))
    history.add(MeasuredBuffers("b 1", "cuda", 0.9, 50))
    history.add(MeasuredBuffers("b 1", "vulkan", 0.7))
    again = BufferHistory(file)
    assert again.all()["b 1|cuda"] == Corrections(1.2, 100, 3)
    assert again.of_backend("vulkan") == Corrections(0.7, None, 1)
    assert again.of_backend("mps") == Corrections()


def test_the_last_build_counts_for_the_server(tmp_path: Path) -> None:
    history = BufferHistory(tmp_path / "buffers.json")
    for build, ratio in (("b 1", 2.0), ("b 2", 0.5)):
        history.add(MeasuredBuffers(build, "cuda", ratio))
    assert history.of_backend("cuda").compute == 0.5


@pytest.mark.parametrize(("measured", "kept"), [(0.0, 0.25), (1000.0, 8.0), (-3.0, 0.25)])
def test_an_impossible_ratio_is_limited(measured: float, kept: float) -> None:
    history = BufferHistory()
    history.add(MeasuredBuffers("b", "cuda", measured, -5))
    assert history.of_backend("cuda") == Corrections(kept, None, 1)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": 1, "buffers": [1]}', '{"format": 1, "buffers": {"a|b": {"x": 1}}}']
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "buffers.json").write_text(text)
    assert BufferHistory(tmp_path / "buffers.json").all() == {}


def partial(gpu_layers: int) -> MemoryFit:
    return MemoryFit(gpu_layers, 33, True, [], 0, "f16", "-")


@pytest.mark.parametrize(
    ("share", "fit", "where", "too_low"),
    [
        (0.5, None, "cuda:0", False),
        (0.4, None, "cpu", True),
        (0.1, partial(3), "cuda:0", False),
        (0.0, partial(0), "cpu", False),
        (0.1, MemoryFit(33, 33, False, [], 0, "f16", "-"), "cpu", True),
    ],
)
def test_a_part_in_system_memory_on_purpose_counts_as_the_device(
    share: float, fit: MemoryFit | None, where: str, too_low: bool
) -> None:
    parts = [PlacementPart("cuda:0", share), PlacementPart("cpu", 1 - share)]
    placement, used = judge_placement(Placement(None, parts, "log"), "cuda:0", fit)
    assert used == where and placement.on_device == share
    assert is_too_low(share, fit) is too_low and counts_as_device(share, fit) is (where == "cuda:0")
