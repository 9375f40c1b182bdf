"""The facts of engines, runtimes and the catalogue are consistent."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backend.cli.bench.text import interpreters
from backend.common.config.settings import load_settings
from backend.common.config.settings.schema import RuntimeRules
from backend.devices import backends
from backend.engines import engines, serves
from backend.models.entries import shipped
from backend.runtimes.recipes import install_hint, recipes

ACCELERATORS = sorted(name for name, backend in backends().items() if backend.kind != "cpu")
# What an engine's library is called on package indexes, and what it needs besides.
PACKAGES = {
    "transformers": ("transformers", "safetensors", "gguf", "accelerate"),
    "diffusers": ("diffusers", "accelerate", "torchsde"),
}


def runs_there(model: str, backend: str) -> bool:
    """Whether a model of the catalogue runs on a backend as it is, in one of its runtimes."""
    facts = [engines()[name] for name in shipped(Path())[model].engines]
    return any(
        backend in engine.backends and serves(engine, runtime)
        for engine in facts
        for runtime in backends()[backend].runtimes
    )


@pytest.mark.parametrize("backend", ACCELERATORS)
def test_every_accelerator_has_a_model_of_the_catalogue_that_runs_without_conversion(backend: str) -> None:
    assert [model for model in shipped(Path()) if runs_there(model, backend)]


@pytest.mark.parametrize("backend", ["cuda", "rocm", "xpu", "mps", "directml", "vulkan"])
def test_text_runs_there_as_it_is(backend: str) -> None:
    assert runs_there("smollm2-135m-instruct", backend)


def test_a_model_does_not_run_where_its_engines_do_not() -> None:
    assert not runs_there("folk-tunes", "vulkan")


@pytest.mark.parametrize("runtime", sorted(recipes()))
def test_a_runtime_brings_what_its_engines_import(runtime: str) -> None:
    recipe = recipes()[runtime]
    lines = recipe.lines("gfx1100")
    for engine in engines().values():
        if runtime in engine.runtimes and recipe.builds:
            for package in PACKAGES.get(engine.library, ()):
                assert any(line.startswith(package) for line in lines), f"{runtime} lacks {package} for {engine.name}"


def test_what_a_model_lacks_on_a_device_is_named_with_its_price() -> None:
    remedy = install_hint(["transformers"], "cpu", {})
    assert remedy.startswith("Install its runtime: `python -m backend runtimes install torch` (")
    assert install_hint(["diffusers"], "cpu", {"diffusers": "Not here."}) == "Not here. Or choose another device."
    assert install_hint(["onnx-genai"], "vulkan", {}) == "Choose another device or model, or leave out the engine."


def test_the_text_bench_measures_the_engines_whose_runtime_is_here(tmp_path: Path) -> None:
    entry, here = shipped(Path())["smollm2-135m-instruct"], ("base", sys.executable)
    settings = load_settings({"storage.data_dir": str(tmp_path)}, environ={})
    assert interpreters(entry, settings) == {"llama.cpp": here}
    torch = replace(settings, runtimes={"torch": RuntimeRules(python=Path(sys.executable))})
    assert interpreters(entry, torch) == {"llama.cpp": here, "transformers": ("torch", sys.executable)}
