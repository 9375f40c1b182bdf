"""Which devices a model fits: the need of its plan against available memory; no statement if either is unknown."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.common.config.settings import load_settings
from backend.common.memory_plan import Corrections
from backend.common.types import Device, ModelFit, Speed
from backend.manager import memory_fit
from backend.manager.memory_fit import MemoryFitEstimator
from backend.models import Catalogue
from backend.models.entries import entry_for
from backend.scheduling.load_size import LoadSize, find_load_size
from tests.test_safetensors import safetensors

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
CPU = Device(
    id="cpu", name="a processor", backend="cpu", kind="cpu", state="ready", stage="runs", engines=["llama.cpp"]
)
CARD = replace(CPU, id="cuda:0", backend="cuda", kind="gpu", hardware_id="pci:1")


def estimator(free: int | None, *devices: Device, **flags: object) -> MemoryFitEstimator:
    pool: Any = SimpleNamespace(
        available_bytes=lambda queue_id, device: free,
        system_free_bytes=lambda: 10**12,
        corrections_of=lambda backend: Corrections(driver_bytes=0),
    )
    directory: Any = SimpleNamespace(known_devices=lambda: list(devices))
    return MemoryFitEstimator(load_settings(flags, {}).text, directory, pool)


def needed(device: Device = CPU) -> int:
    size = find_load_size(
        "llama.cpp",
        str(TINY),
        device,
        load_settings({}, {}).text,
        free_bytes=None,
        system_free_bytes=None,
        corrections=Corrections(driver_bytes=0),
    )
    assert size.needed_bytes
    return size.needed_bytes


@pytest.mark.parametrize(("spare", "fits", "words"), [(0, "yes", "It fits cpu"), (-(2**27), "no", "It does not fit")])
def test_need_and_room_are_compared(spare: int, fits: str, words: str) -> None:
    entry = entry_for("tiny", TINY, None, None)
    (found,) = estimator(needed() + spare, CPU).fits_of(entry)
    assert (found.device, found.fits, found.engine, found.needed_bytes) == ("cpu", fits, "llama.cpp", needed())
    assert found.reason.startswith("0 MB weights + 0 MB cache at 128 tokens + 0.1 GB; cpu has ")
    assert estimator(needed() + spare, CPU).describe(entry).startswith(words)


def test_a_card_takes_a_part_of_the_layers() -> None:
    entry = entry_for("tiny", TINY, None, None)
    (whole,) = estimator(needed(CARD), CARD).fits_of(entry)
    assert whole.fits == "yes" and "cuda:0 has" in whole.reason
    (none,) = estimator(1000, CARD).fits_of(entry)
    assert none.fits == "no"


def test_nothing_is_guessed(tmp_path: Path) -> None:
    entry = entry_for("tiny", TINY, None, None)
    (unknown,) = estimator(None, CPU).fits_of(entry)
    assert (unknown.free_bytes, unknown.fits) == (None, None)
    assert estimator(None, CPU).describe(entry) == ""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    found = estimator(10**12, CPU).fits_of(entry_for("broken", broken, None, None))
    unread = [replace(each, engine_reason="") for each in found]
    assert unread in ([], [ModelFit("cpu", None, "Its files cannot be read.", "llama.cpp", None, 10**12)])


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


def test_a_list_reads_only_files_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    for number in range(3):
        shutil.copy(TINY, folder / f"model-{number}.gguf")
    settings = load_settings({"storage.data_dir": str(tmp_path / "data")}, {})
    catalogue, fit = Catalogue(settings), estimator(10**9, CPU, CARD)
    first = {model.id: model for model in fit.list_models(catalogue)}
    ours = first["model-0"]
    assert ours.parameters == 6800 and (ours.context_length, ours.quantization) == (128, None)
    assert set(ours.memory_bytes) == {"cpu", "gpu"} and [found.fits for found in ours.fits] == ["yes", "yes"]
    reads: list[str] = []

    def find(engine: str, path: str, *rest: Any, **more: Any) -> LoadSize:
        reads.append(path)
        return find_load_size(engine, path, *rest, **more)

    monkeypatch.setattr(memory_fit, "find_load_size", find)
    assert {model.id: model for model in fit.list_models(catalogue)} == first
    assert reads == []
    os.utime(folder / "model-1.gguf", (1, 1))
    fit.list_models(catalogue)
    assert set(reads) == {str(folder / "model-1.gguf")}


def test_the_engine_that_would_run_it_is_named_with_the_one_that_would_run_it_better() -> None:
    entry = replace(entry_for("tiny", TINY, None, None), engines=("llama.cpp", "transformers"))
    torch_only = replace(CARD, engines=["transformers"])
    (found,) = estimator(10**12, torch_only).fits_of(entry)
    assert found.engine == "transformers"
    assert found.engine_reason.startswith("It is the only engine that cuda:0 offers for this model. llama.cpp comes")
    assert ("`python -m backend runtimes install llama-cuda` (" in found.engine_reason) == (sys.platform != "darwin")
    both = replace(CARD, engines=["llama.cpp", "transformers"])
    (found,) = estimator(10**12, both).fits_of(entry)
    assert found.engine == "llama.cpp" and found.engine_reason.startswith("It comes first in the documented order")
    speeds = {"llama.cpp": 9.0, "transformers": 90.0}
    slower = [Speed("tiny", name, value, "tokens/s", "x", value, value) for name, value in speeds.items()]
    (found,) = estimator(10**12, replace(both, speed=slower)).fits_of(entry)
    assert found.engine == "transformers" and "fastest measured" in found.engine_reason
