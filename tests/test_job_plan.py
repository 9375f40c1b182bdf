"""A job resolves its device and its model once, and reading files never blocks the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.common.config.settings import load_settings
from backend.engines import load_engine
from backend.jobs.generate_request import parse_request
from backend.jobs.live_job import LiveJob
from backend.manager.core import Core
from backend.models import Catalogue
from backend.scheduling import device_resolution
from backend.scheduling.target_selection import TargetSelector
from tests.faulty import faulty
from tests.test_executor import CARD, _config

SLOW_S = 0.6


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: Counter[str], counted_as: str) -> None:
    """Count the calls of a function without changing what it does."""
    original = getattr(owner, name)

    def counting(*arguments: Any, **options: Any) -> Any:
        calls[counted_as] += 1
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, counting)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often devices were resolved, targets selected, queries built, and the catalogue asked.

    A resolution is a choice of one device: by rank for `auto`, `gpu` and `npu`, by index for a backend. Admission only
    parses the name.
    """
    calls: Counter[str] = Counter()
    for name in ("_resolve_general", "_resolve_backend"):
        count_calls(monkeypatch, device_resolution, name, calls, "resolve")
    count_calls(monkeypatch, TargetSelector, "_target_on", calls, "select")
    count_calls(monkeypatch, TargetSelector, "_build_query", calls, "query")
    count_calls(monkeypatch, Catalogue, "entries", calls, "model folder")
    count_calls(monkeypatch, Catalogue, "path_of", calls, "model state")
    return calls


def play(
    tmp_path: Path, faults: list[str], calls: Counter[str], *bodies: dict[str, Any], waits: bool = True
) -> list[tuple[LiveJob, Counter[str]]]:
    """Run jobs one after another; return each with the calls that it caused. The n-th worker plays the n-th fault."""
    left = list(faults)

    def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        return faulty(left.pop(0) if arguments[0] == "run" else "ok")(python, arguments)

    async def once() -> list[tuple[LiveJob, Counter[str]]]:
        core = Core(load_settings({"config": _config(tmp_path)}, {}), spawn)
        await core.start()
        jobs: list[tuple[LiveJob, Counter[str]]] = []
        try:
            if waits:
                await core.probes.wait_until_idle()
                core.probes.devices[CARD.id] = CARD
            for body in bodies:
                calls.clear()
                job = await core.submit(parse_request({"prompt": "Hi", "model": "tiny", **body}), "test")
                assert isinstance(job, LiveJob)
                await job.ended.wait()
                assert job.status == "done", job.error
                jobs.append((job, Counter(calls)))
            return jobs
        finally:
            await core.stop()

    return asyncio.run(once())


@pytest.mark.parametrize("device", ["auto", "cpu", "vulkan:0"])
def test_a_warm_job_is_planned_once(tmp_path: Path, calls: Counter[str], device: str) -> None:
    _, (_, made) = play(tmp_path, ["ok"], calls, {"device": device}, {"device": device})
    assert made == {"resolve": 1, "select": 1, "query": 1, "model state": 1}, "the model folders are not read"


def test_a_fallback_selects_one_more_target(tmp_path: Path, calls: Counter[str]) -> None:
    ((job, made),) = play(tmp_path, ["no_memory", "ok"], calls, {"device": "vulkan:0"})
    assert job.receipt and job.receipt.used == "cpu"
    assert made == {"resolve": 1, "select": 2, "query": 1, "model state": 1}, "the model folders are not read"


def test_a_job_that_waits_for_probes_is_planned_before_and_after_them(tmp_path: Path, calls: Counter[str]) -> None:
    ((_, made),) = play(tmp_path, ["ok"], calls, {"device": "cpu"}, waits=False)
    assert (made["resolve"], made["query"]) == (2, 2), "an alias may mean another device after the probes"


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    def sleeping(*arguments: Any, **options: Any) -> Any:
        time.sleep(SLOW_S)
        return function(*arguments, **options)

    return sleeping


@pytest.mark.parametrize("owner", [(Catalogue, "entries"), (Catalogue, "path_of"), (None, "estimate_bytes")], ids=str)
def test_a_slow_disk_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: tuple[Any, str]
) -> None:
    target, name = owner[0] or load_engine("llama.cpp"), owner[1]

    async def longest_stall_s() -> float:
        core = Core(load_settings({"config": _config(tmp_path)}, {}), faulty("ok"))
        await core.start()
        longest_s = 0.0

        async def watch() -> None:
            nonlocal longest_s
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                longest_s = max(longest_s, time.monotonic() - before)

        try:
            await core.probes.wait_until_idle()
            monkeypatch.setattr(target, name, slow(getattr(target, name)))
            watching = asyncio.create_task(watch())
            job = await core.submit(parse_request({"prompt": "Hi", "device": "cpu"}), "test")
            assert isinstance(job, LiveJob)
            await job.ended.wait()
            watching.cancel()
            assert job.status == "done"
            return longest_s
        finally:
            await core.stop()

    assert asyncio.run(longest_stall_s()) < SLOW_S
