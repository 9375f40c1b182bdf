"""Which runtime is offered first for which hardware, and that offers and recipes name each other."""

from __future__ import annotations

import platform
import re
import sys

import pytest

from backend.common.types import DeviceKind, Hardware
from backend.devices import backends
from backend.engines import engines
from backend.manager.runtime_service.recommendation import best
from backend.manager.runtime_service.verification import meant_for
from backend.runtimes.recipes import how_to, recipes
from backend.runtimes.types import Runtime


def card(vendor: str, kind: DeviceKind = "gpu", architecture: str | None = None, slot: int = 1) -> Hardware:
    return Hardware(f"pci:0000:0{slot}:00.0", f"{vendor} card", vendor, kind, architecture=architecture)


def first(hardware: list[Hardware], *installed: str) -> str | None:
    """What is offered where all that is made for the system can be installed."""
    states = [
        Runtime(name, "installed" if name in installed else "installable" if recipe.build() else "unsupported")
        for name, recipe in recipes().items()
    ]
    name, reason = best(recipes().values(), states, hardware)
    assert reason.endswith(".") and (name is None or recipes()[name].title in reason)
    return name


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(sys, "platform", request.param)
    monkeypatch.setattr(platform, "machine", lambda: "AMD64" if request.param == "win32" else "x86_64")


@pytest.mark.parametrize(
    ("system", "hardware", "name"),
    [
        ("linux", [card("NVIDIA")], "llama-cuda"),
        ("linux", [card("AMD", architecture="gfx1100")], "llama-vulkan"),
        ("linux", [card("AMD", architecture="gfx803")], "llama-vulkan"),
        ("linux", [card("Intel")], "llama-vulkan"),
        ("linux", [card("Intel", "integrated"), card("NVIDIA", slot=2)], "llama-cuda"),
        ("win32", [card("NVIDIA")], "llama-cuda"),
        ("win32", [card("AMD", architecture="gfx1100")], "onnx-directml"),
        ("win32", [card("Intel")], "onnx-directml"),
        ("linux", [card("AMD", "npu")], None),
        ("linux", [card("Red Hat", "emulated")], None),
        ("linux", [], None),
    ],
    indirect=["system"],
)
def test_the_first_offer_for(system: None, hardware: list[Hardware], name: str | None) -> None:
    assert first(hardware) == name


@pytest.mark.parametrize("system", ["linux"], indirect=True)
def test_what_is_installed_is_not_offered_and_nothing_worse_in_its_place(system: None) -> None:
    assert first([card("NVIDIA")], "llama-cuda") is None
    assert first([card("NVIDIA")], "cuda") == first([card("NVIDIA")], "onnx-cuda") == "llama-cuda"
    assert first([card("NVIDIA"), card("AMD", architecture="gfx1100", slot=2)], "llama-cuda") == "llama-vulkan"


@pytest.mark.parametrize("system", ["linux"], indirect=True)
def test_a_runtime_knows_the_hardware_that_it_is_for(system: None) -> None:
    cards = [card("NVIDIA"), card("AMD", architecture="gfx1100", slot=2)]
    assert {name for name, _ in meant_for("cuda", cards)} == {"cuda"}
    assert {name for name, _ in meant_for("onnx-cuda", cards)} == {"onnx-cuda", "onnx-tensorrt"}
    assert [item.vendor for _, item in meant_for("rocm", cards)] == ["AMD"]
    assert not meant_for("torch", cards), "the build for the processor drives no card"
    assert [name for name, _ in meant_for("llama-cuda", cards)] == ["cuda"]
    assert [item.vendor for _, item in meant_for("llama-rocm", cards)] == ["AMD"]
    assert not meant_for("llama-rocm", [card("AMD", architecture="gfx1030")]), "its build has no kernels for that chip"
    assert {item.vendor for _, item in meant_for("llama-vulkan", cards)} == {"NVIDIA", "AMD"}


def test_every_offer_of_a_backend_has_a_recipe_and_every_recipe_somebody_it_is_for() -> None:
    offered = {offer.runtime for backend in backends().values() for offer in backend.offers}
    assert offered <= set(recipes())
    named = {name for backend in backends().values() for name in backend.runtimes}
    assert set(recipes()) <= named


def test_every_runtime_in_which_texts_run_can_read_their_templates() -> None:
    writing = {name for engine in engines().values() if "text" in engine.tasks for name in engine.runtimes}
    made = [recipe for recipe in recipes().values() if recipe.name in writing and recipe.builds]
    assert {"torch", "llama-vulkan", "llama-cuda", "openvino"} <= {recipe.name for recipe in made}
    for recipe in made:
        names = {re.split(r"[\[=<>~; ]", line)[0] for line in recipe.lines("gfx1100")}
        assert names & {"jinja2", "torch"}, recipe.name  # torch brings it


@pytest.mark.parametrize("system", ["linux", "win32"], indirect=True)
def test_the_command_comes_with_what_it_costs_and_what_the_package_reports(system: None) -> None:
    said = how_to(recipes()["cuda"])
    assert (
        said.startswith("Install it: `python -m backend runtimes install cuda` (")
        and "on disk" in said
        and "at 10 MB/s" in said
    )
    assert "reports to its maker" in how_to(recipes()["directml"])
