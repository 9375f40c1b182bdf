"""Loads of llama.cpp by a memory plan: real ones on the processor, and a card's with a stand-in for the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.common.errors import OutOfMemory
from backend.common.formats.gguf import read_layout
from backend.common.memory_plan import Corrections, DeviceRoom, PlanOrder, PlanSettings, make_plan
from backend.common.memory_plan.buffers import system_bytes
from backend.engines import LoadRequest, load_engine
from backend.engines._llama import fit
from backend.engines._llama.library import LibraryDevice

CASES = Path(__file__).parent / "cases" / "gguf"
MB = 1_000_000
LOG = """CUDA0 model buffer size = 0.50 MiB
CUDA0 KV buffer size = 1.00 MiB
CUDA0 compute buffer size = 2.00 MiB
CPU model buffer size = 0.25 MiB
"""


@pytest.mark.parametrize(
    ("name", "limit_mb", "slots", "context_tokens"),
    [("small_dense", 200, 4, 4096), ("small_windowed", 103.1, 1, 4096), ("small_mixture", 102.6, 1, 2048)],
)
def test_a_real_load_stays_within_the_memory(name: str, limit_mb: float, slots: int, context_tokens: int) -> None:
    order = PlanOrder(PlanSettings(), limit_bytes=int(limit_mb * MB))
    session = load_engine("llama.cpp").load(LoadRequest("cpu", str(CASES / f"{name}.gguf"), 4096, 1, order=order))
    assert (session.slots, session.context_tokens) == (slots, context_tokens)
    assert session.fit and session.measured
    (system,) = session.fit.devices
    assert (system.where, session.fit.gpu_layers, session.fit.is_partial) == ("cpu", 0, False)
    assert system.bytes + system_bytes() <= limit_mb * MB
    assert session.fit.explanation.startswith("System memory: ") and session.fit.retried is None
    assert 0.2 < session.measured.compute <= 1.0, "the estimate is not exceeded"


def test_what_fits_nowhere_is_refused_with_the_arithmetic() -> None:
    order = PlanOrder(PlanSettings(), limit_bytes=100 * MB)
    with pytest.raises(OutOfMemory) as caught:
        load_engine("llama.cpp").load(LoadRequest("cpu", str(CASES / "small_dense.gguf"), 4096, 1, order=order))
    assert "512 tokens" in caught.value.detail and "text.context_tokens" in caught.value.remedy


class CardLibrary:
    """A library with cards whose memory is a number. A load fails while it exceeds what is really free."""

    title = "llama 1"

    def __init__(self, *free: int, really_free: int | None = None) -> None:
        self.free, self.really_free = list(free), really_free
        self.requests: list[LoadRequest] = []
        self.devices_used: list[list[str]] = []

    def devices(self) -> list[LibraryDevice]:
        return [
            LibraryDevice(number, "CUDA", f"CUDA{number}", "a card", f"0000:0{number}:00.0", free)
            for number, free in enumerate(self.free)
        ]

    def load_model(self, library: Any, request: LoadRequest, devices: Any, makes_embeddings: bool) -> Any:
        self.requests.append(request)
        self.devices_used.append([device.name for device in devices])
        layers = request.llama.gpu_layers or 0
        if self.really_free is not None and layers * 22_000 > self.really_free:
            raise OutOfMemory("CUDA0: cudaMalloc failed.", "-")
        self.free[0] -= 4 << 20
        return SimpleNamespace(log=LOG, names={"CUDA0": "cuda:0"})


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., fit.FittedLoad]:
    def run(library: CardLibrary, name: str = "small_dense", **settings: Any) -> fit.FittedLoad:
        monkeypatch.setattr(fit, "load_model", library.load_model)
        monkeypatch.setattr(fit, "memory_free_bytes", lambda: 10**10)
        corrections = {"llama 1|cuda": Corrections(driver_bytes=0)}
        order = PlanOrder(PlanSettings(**settings), None, corrections)
        request = LoadRequest("cuda:0", str(CASES / f"{name}.gguf"), 4096, 1, order=order)
        return fit.load_fitted(library, request, library.devices(), False)  # type: ignore[arg-type]

    return run


def test_a_card_takes_all_layers_and_is_measured(load: Callable[..., fit.FittedLoad]) -> None:
    library = CardLibrary(1000 * MB)
    done = load(library)
    (request,) = library.requests
    assert request.llama.gpu_layers == 5 and request.slots > 1 and request.llama.flash_attention == "auto"
    assert done.fit and (done.fit.gpu_layers, done.fit.is_partial) == (5, False)
    assert [(each.where, each.layers) for each in done.fit.devices] == [("cuda:0", 5), ("cpu", 0)]
    assert done.measured and done.measured.driver_bytes == (4 << 20) - round(3.5 * (1 << 20))
    assert (done.measured.build, done.measured.backend) == ("llama 1", "cuda")


def test_a_small_card_takes_a_part(load: Callable[..., fit.FittedLoad]) -> None:
    layout = read_layout(CASES / "small_dense.gguf")
    assert layout
    whole = make_plan(layout, [DeviceRoom("a", 10**9)], None, PlanSettings(slots=1, context_tokens=1024))
    done = load(CardLibrary(whole.device_bytes), context_tokens=1024, slots=1)
    assert done.fit and 0 < done.fit.gpu_layers < 5 and done.fit.is_partial and done.measured is None
    assert f"{done.fit.gpu_layers} of 5 layers" in done.fit.explanation


def test_a_card_without_room_for_a_layer_is_refused_unless_that_was_asked(load: Callable[..., fit.FittedLoad]) -> None:
    with pytest.raises(OutOfMemory, match=r"memory of cuda:0. cuda:0: 1 of 5 layers, .*; 1 MB free"):
        load(CardLibrary(MB))
    library = CardLibrary(1000 * MB)
    done = load(library, gpu_layers=0)
    assert library.devices_used == [[]]
    assert done.fit and (done.fit.gpu_layers, done.fit.is_partial, done.measured) == (0, True, None)


def test_settings_reach_the_library(load: Callable[..., fit.FittedLoad]) -> None:
    library = CardLibrary(1000 * MB)
    done = load(library, "small_mixture", experts="system", kv_cache="q8_0", gpu_layers=3, slots=2, context_tokens=600)
    (request,) = library.requests
    chosen = request.llama
    assert (chosen.gpu_layers, chosen.expert_layers_in_memory, chosen.cache_type_k, chosen.flash_attention) == (
        3,
        3,
        "q8_0",
        "on",
    )
    assert (request.slots, request.context_tokens) == (2, 600)
    assert done.fit and done.fit.is_partial and done.fit.kv_cache == "q8_0"


def test_several_cards_share_the_layers(load: Callable[..., fit.FittedLoad]) -> None:
    library = CardLibrary(1000 * MB, 1000 * MB)
    load(library, "small_windowed", context_tokens=8192, slots=16)
    (request,) = library.requests
    assert request.llama.gpu_layers == 7 and sum(request.llama.split) == 7 and min(request.llama.split) > 0
    alone = CardLibrary(1000 * MB, 2000 * MB)
    load(alone, "small_windowed", split="none")
    assert alone.requests[0].llama.split == (0.0, 7.0)


def test_a_load_that_runs_out_of_memory_is_tried_once_with_less(load: Callable[..., fit.FittedLoad]) -> None:
    library = CardLibrary(1000 * MB, really_free=100_000)
    done = load(library, slots=1, context_tokens=512)
    first, second = library.requests
    assert (first.llama.gpu_layers, second.llama.gpu_layers) == (5, 3)
    assert done.fit and done.fit.is_partial and done.fit.gpu_layers == 3
    assert done.fit.retried and done.fit.retried.startswith("A first attempt with 5 of 5 layers")
    assert "cudaMalloc failed" in done.fit.retried


def test_a_number_of_layers_that_fails_is_not_changed(load: Callable[..., fit.FittedLoad]) -> None:
    library = CardLibrary(1000 * MB, really_free=100_000)
    with pytest.raises(OutOfMemory):
        load(library, slots=1, context_tokens=512, gpu_layers=5)
    assert len(library.requests) == 1
