"""Memory of a card in receipts: free memory before the load minus free memory now, as the driver reports it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.child.model_files import OpenedFiles
from backend.child.programs.run import _Worker
from backend.common.config.settings import load_settings
from backend.common.types import Device, Placement
from backend.devices._mechanisms.torch_placement import TorchPlace
from backend.engines import LoadRequest, RunResult, Session
from backend.scheduling.worker import Worker, WorkerKey
from backend.scheduling.worker_pool import WorkerPool
from tests.faulty import faulty

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
CARD = Device("cuda:0", "A card", "cuda", "gpu", "ready", hardware_id="pci:0000:01:00.0", memory_free_bytes=1 << 30)
CPU = Device("cpu", "A processor", "cpu", "cpu", "ready", hardware_id="cpu:0")


@pytest.mark.parametrize(("device", "expected"), [(CARD, 777_000_000), (CPU, None)], ids=["card", "processor"])
def test_a_worker_is_told_what_was_free_on_its_card(
    monkeypatch: pytest.MonkeyPatch, device: Device, expected: int | None
) -> None:
    told: list[LoadRequest] = []
    load = Worker.load

    async def watched(self: Worker, engine: str, request: LoadRequest, *more: Any) -> Any:
        told.append(request)
        return await load(self, engine, request, *more)

    async def once() -> None:
        pool = WorkerPool(
            load_settings({}, {}),
            {"base": "python"},
            faulty("ok"),
            lambda: 1 << 30,
            card_free_bytes=lambda _: 777_000_000,
        )
        try:
            held, _ = await pool.acquire("lane", device, WorkerKey(device.id, "base", "llama.cpp", "a"), TINY)
            pool.release(held)
        finally:
            await pool.close("test ended")

    monkeypatch.setattr(Worker, "load", watched)
    asyncio.run(once())
    assert [request.card_free_bytes for request in told] == [expected]


def done_of(session: Any) -> dict[str, Any]:
    """The frame with which the worker program ends a job."""
    frames: list[dict[str, Any]] = []
    worker = _Worker(SimpleNamespace(send=frames.append, send_all=frames.extend))  # type: ignore[arg-type]
    worker._session, worker._files = session, OpenedFiles(TINY)
    request: dict[str, Any] = {"messages": None, "prompt": "a", "options": {}, "seed": 1, "reuse_cache": False}
    worker._run({"op": "run", "job": "j", "request": request})
    return frames[-1]


def run(request: Any, emit: Any) -> RunResult:
    return RunResult({"tokens": 1}, "stop")


def test_the_receipt_has_the_card_s_figures_where_they_are_told() -> None:
    figures = iter((500, 900))
    memory = done_of(SimpleNamespace(run=run, device_bytes=lambda: next(figures)))["memory"]
    assert memory == {"before_bytes": 500, "peak_bytes": 900, "after_bytes": 900}


class PlainSession(Session):
    """A session with the defaults of the protocol."""

    placement = Placement(None)
    threads: int | None = None
    versions: dict[str, str] = {}

    def run(self, request: Any, emit: Any) -> RunResult:
        return run(request, emit)


@pytest.mark.parametrize("session", [PlainSession(), SimpleNamespace(run=run, device_bytes=lambda: None)])
def test_else_it_has_those_of_the_process(session: Any) -> None:
    memory = done_of(session)["memory"]
    assert memory["before_bytes"] > 1_000_000 and memory["peak_bytes"] >= memory["after_bytes"]


@pytest.mark.parametrize(
    ("before", "now", "taken"), [(1000, 400, 600), (1000, 1100, 0), (None, 400, None), (1000, None, None)]
)
def test_what_is_gone_of_a_card_was_taken(before: int | None, now: int | None, taken: int | None) -> None:
    place: Any = SimpleNamespace(access=SimpleNamespace(free_bytes=lambda: now))
    assert TorchPlace.taken_since(place, before)() == taken
