"""Which devices a model fits: estimated need against available memory; no statement if either is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.common.config.settings import load_settings
from backend.common.types import Device
from backend.engines import load_engine
from backend.manager.memory_fit import DeviceFit, MemoryFitEstimator
from backend.models.entries import entry_for
from tests.test_safetensors import safetensors

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
CPU = Device(
    id="cpu", name="a processor", backend="cpu", kind="cpu", state="ready", stage="runs", engines=["llama.cpp"]
)


def estimator(free: int | None, *devices: Device) -> MemoryFitEstimator:
    pool: Any = SimpleNamespace(available_bytes=lambda queue_id, device: free)
    directory: Any = SimpleNamespace(known_devices=lambda: list(devices))
    return MemoryFitEstimator(load_settings({}, {}).text, directory, pool)


def needed() -> int:
    text = load_settings({}, {}).text
    found = load_engine("llama.cpp").estimate_bytes(str(TINY), text.context_tokens, text.slots)
    assert found
    return found


@pytest.mark.parametrize(("spare", "fit", "words"), [(0, True, "It fits cpu"), (-1, False, "It does not fit cpu")])
def test_need_and_room_are_compared(spare: int, fit: bool, words: str) -> None:
    entry = entry_for("tiny", TINY, None, None)
    found = estimator(needed() + spare, CPU).fits_of(entry)
    assert found == [DeviceFit("cpu", "llama.cpp", needed(), needed() + spare, fit)]
    assert estimator(needed() + spare, CPU).describe(entry).startswith(words)


def test_nothing_is_guessed(tmp_path: Path) -> None:
    entry = entry_for("tiny", TINY, None, None)
    (unknown,) = estimator(None, CPU).fits_of(entry)
    assert (unknown.free_bytes, unknown.fits) == (None, None)
    assert estimator(None, CPU).describe(entry) == ""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    (unknown,) = estimator(10**12, CPU).fits_of(entry_for("broken", broken, None, None))
    assert (unknown.needed_bytes, unknown.fits) == (None, None)


def test_devices_that_cannot_run_it_are_left_out() -> None:
    entry = entry_for("tiny", TINY, None, None)
    away = replace(CPU, id="cuda:0", state="broken")
    other = replace(CPU, id="webgpu:0", engines=["onnxruntime"])
    assert estimator(10**12, away, other).fits_of(entry) == []


def test_where_nothing_runs_it_what_would_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": ("F32", 4)}))
    words = estimator(10**12, CPU).describe(entry_for("stone", tmp_path, None, None))
    assert "No device here runs it as it is" in words
    assert "runtimes install torch" in words and "models convert stone" in words
