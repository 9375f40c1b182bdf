"""The fallback policy as a table: policy, error code and states of the other devices decide where a job goes.

Stand-in workers fail with the errors that the test names, so that no process is started.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.common import errors
from backend.common.errors import BY_CODE, TouchstoneError, from_code
from backend.common.types import Device, Placement, PlacementPart, Receipt
from backend.devices import backends
from backend.jobs.executor import ExecutorContext, JobExecutor
from backend.jobs.job_request import JobRequest
from backend.models.entries import Entry
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.device_resolution import Resolution, resolve, unreachable
from backend.scheduling.quarantine import Quarantine, WorkerDeath
from backend.scheduling.ranking import RankingQuery
from backend.scheduling.worker import LoadResult, WorkerKey

MODEL = Entry("stone", "Stone", "text", ("llama.cpp",), Path("stone.gguf"), licence="MIT")
MEMORY = {"before_bytes": 1, "peak_bytes": 2, "after_bytes": 1}


def device(id_: str, **more: Any) -> Device:
    backend = backends()[id_.partition(":")[0]]
    able = {"tasks": ["text"], "engines": ["llama.cpp"], "served_by": {"base": ["llama.cpp"]}}
    return Device(
        id_, id_, backend.name, backend.kind, **{"state": "ready", "hardware_id": f"of {id_}", **able, **more}
    )


CPU, FIRST, SECOND = device("cpu"), device("vulkan:0"), device("vulkan:1")


@dataclass
class StandIn:
    """A worker that runs a job to its end, or raises an error while it runs."""

    key: WorkerKey
    error: TouchstoneError | None
    share: float | None = 1.0
    pid: int = 7
    alive: bool = True

    @property
    def loaded(self) -> LoadResult:
        parts = [PlacementPart(self.key.device, self.share)]
        if self.share is not None and self.share < 1:
            parts.append(PlacementPart("cpu", 1 - self.share))
        return LoadResult(Placement(None, parts, "by its log"), 1, {})

    async def run(self, job_id: str, request: object, cancelling: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        yield {"op": "token", "text": self.key.device, "count": 1}
        if self.error:
            raise self.error
        counts = {"tokens": 3, "prompt_tokens": 1}
        times = {"first_token_s": 0.1, "run_s": 0.3}
        rest = {"chat_template": None, "batched": False, "finish_reason": "stop", "cancelled": False}
        unknown = {"placement": None, "model_stamp": None}
        yield {"op": "done", "counts": counts, "memory": MEMORY, **times, **rest, **unknown}


@dataclass
class Sink:
    """A job that only notes what its executor writes to it."""

    request: JobRequest
    id: str = "job"
    task: str = "text"
    caller: str = "test"
    progress: Any = None
    finish_reason: str | None = None
    receipt: Receipt | None = None
    cancelling: asyncio.Event = field(default_factory=asyncio.Event)
    accepted_at: float = field(default_factory=time.perf_counter)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def emit(self, event: str, data: dict[str, Any]) -> None:
        self.events.append((event, data))

    async def set_status(self, status: str, data: dict[str, Any]) -> None:
        self.events.append((status, data))

    def set_queue_position(self, position: int, expected_s: float | None) -> None:
        self.events.append(("position", {"position": position}))

    async def flush(self) -> None:
        pass


class Shop:
    """An ExecutorContext with real queues, resolution and quarantine, and stand-in workers.

    `failures` are the codes with which a device fails: while it loads (`load:CODE`) or while it runs (`CODE`).
    """

    def __init__(self, devices: list[Device], failures: Mapping[str, str], share: float | None = 1.0) -> None:
        self.devices = {each.id: each for each in devices}
        self.failures = failures
        self.share = share
        self.pool = cast(Any, self)
        self.probes = SimpleNamespace(probing=False, is_checking=lambda device: False)
        self.quarantine = Quarantine()
        self.deaths: Counter[str] = Counter()
        self.users = 0
        self._queues: dict[str, DeviceQueue] = {}

    def known_devices(self) -> list[Device]:
        return list(self.devices.values())

    def device(self, id_: str) -> Device:
        return self.devices.get(id_) or unreachable(id_, backends()[id_.partition(":")[0]])

    def resolve(self, asked: str, task: str, engine: str | None, query: RankingQuery) -> Resolution:
        return resolve(asked, self.devices, [], task=task, engine=engine, query=query)

    def queue(self, hardware_id: str) -> DeviceQueue:
        return self._queues.setdefault(hardware_id, DeviceQueue(hardware_id))

    def loading_lock(self, hardware_id: str) -> asyncio.Lock:
        return asyncio.Lock()

    def runs_beside_others(self, model: str) -> bool:
        return False

    def worker_died(self, death: WorkerDeath) -> None:
        self.deaths[death.place.device] += 1

    def joinable_engine(self, device: str, model: str, names: object) -> None:
        return None

    def is_loaded(self, key: WorkerKey) -> bool:
        return False

    async def try_acquire(self, key: WorkerKey, path: Path, gpu_layers: int | None) -> None:
        return None

    def slots_for(self, key: WorkerKey) -> int:
        return 1

    async def acquire(self, hardware_id: str, device: Device, key: WorkerKey, *_: object) -> tuple[Any, float]:
        code = self.failures.get(device.id, "")
        if code.startswith("load:"):
            raise from_code(code.removeprefix("load:"), f"{device.id} failed.", "Try another one.")
        error = from_code(code, f"{device.id} failed.", "Try another one.") if code else None
        self.users += 1
        return SimpleNamespace(worker=StandIn(key, error, self.share)), 0.5

    def discard(self, loaded: object, cause: str) -> None:
        pass

    def release(self, loaded: object) -> None:
        self.users -= 1


def run(
    failures: Mapping[str, str],
    *devices: Device,
    share: float | None = 1.0,
    names: tuple[str, ...] = ("vulkan:0",),
    fallback: Any = "cpu",
    engine: str | None = None,
) -> tuple[Sink, Shop, TouchstoneError | None]:
    """Run one job and return it with the error that ended it."""

    async def play() -> tuple[Sink, Shop, TouchstoneError | None]:
        shop = Shop(list(devices), failures, share)
        several = names if len(names) > 1 else None
        request = JobRequest("text", MODEL.id, names[0], several, None, fallback, engine, {}, "Hi")
        job = Sink(request)
        executor = JobExecutor(cast(ExecutorContext, shop), cast(Any, job), MODEL)
        ending = None
        try:
            await executor.run()
        except TouchstoneError as error:
            ending = error
        executor.note_receipt()
        assert shop.users == 0 and all(not queue.is_busy for queue in shop._queues.values()), "everything is released"
        return job, shop, ending

    return asyncio.run(play())


def attempts(job: Sink) -> list[tuple[str, str | None]]:
    assert job.receipt
    return [(attempt.device, attempt.error) for attempt in job.receipt.attempts]


FALLING = sorted(code for code, kind in BY_CODE.items() if kind.falls_back)
KILLING = sorted(code for code, kind in BY_CODE.items() if kind.kills_worker)
FINAL = sorted(code for code, kind in BY_CODE.items() if not kind.falls_back and not kind.kills_worker)


@pytest.mark.parametrize("when", ["", "load:"])
@pytest.mark.parametrize("code", FALLING)
@pytest.mark.parametrize(
    ("policy", "where"), [("cpu", ["vulkan:0", "cpu"]), ("any", ["vulkan:0", "vulkan:1"]), ("never", ["vulkan:0"])]
)
def test_the_policy_decides_where_a_job_goes_after_a_failure_of_the_device(
    policy: str, where: list[str], code: str, when: str
) -> None:
    job, _, ending = run({"vulkan:0": when + code}, CPU, FIRST, SECOND, fallback=policy)
    outcomes: list[str | None] = [code] + [None] * (len(where) - 1)
    assert attempts(job) == list(zip(where, outcomes, strict=True))
    assert (ending.code if ending else None) == (code if policy == "never" else None)
    moves = [(data["from"], data["to"], data["code"]) for event, data in job.events if event == "fallback"]
    assert moves == [("vulkan:0", target, code) for target in where[1:]]
    assert job.receipt and (job.receipt.reason is not None) == bool(moves)
    if ending is None:
        assert job.receipt.used == where[-1] and job.receipt.fell_back is True


@pytest.mark.parametrize("policy", ["cpu", "any", "never"])
@pytest.mark.parametrize("code", [*KILLING, *FINAL])
def test_no_policy_repeats_a_job_that_is_to_blame_itself(policy: str, code: str) -> None:
    job, shop, ending = run({"vulkan:0": code}, CPU, FIRST, SECOND, fallback=policy)
    assert ending and ending.code == code and attempts(job) == [("vulkan:0", code)]
    assert shop.deaths["vulkan:0"] == (code in KILLING), "only the death of a worker counts for the quarantine"


@pytest.mark.parametrize("when", ["", "load:"])
def test_wrong_results_count_for_the_quarantine_although_the_job_goes_on_elsewhere(when: str) -> None:
    _, shop, ending = run({"vulkan:0": f"{when}device_wrong"}, CPU, FIRST)
    assert ending is None and shop.deaths == {"vulkan:0": 1}
    _, shop, ending = run({"vulkan:0": "device_lost"}, CPU, FIRST)
    assert ending is None and not shop.deaths


OTHERS = [
    ("it is not ready", replace(SECOND, state="broken", reason="x", remedy="y"), "cpu"),
    ("the model is in quarantine on it", replace(SECOND, quarantined_models=["stone"]), "cpu"),
    ("it is emulated", replace(SECOND, kind="emulated"), "cpu"),
    ("it has no engine for the task", replace(SECOND, tasks=["music"]), "cpu"),
    ("it can run the job", SECOND, "vulkan:1"),
]


@pytest.mark.parametrize(("why", "other", "where"), OTHERS, ids=[why for why, _, _ in OTHERS])
def test_the_policy_any_takes_only_devices_that_can_run_the_job(why: str, other: Device, where: str) -> None:
    job, _, ending = run({"vulkan:0": "device_lost"}, CPU, FIRST, other, fallback="any")
    assert ending is None and attempts(job)[-1] == (where, None)


def test_the_policy_any_tries_each_device_once_and_the_cpu_last() -> None:
    failures = {"vulkan:0": "device_lost", "vulkan:1": "load:out_of_memory"}
    job, _, ending = run(failures, CPU, FIRST, SECOND, fallback="any")
    assert ending is None
    assert attempts(job) == [("vulkan:0", "device_lost"), ("vulkan:1", "out_of_memory"), ("cpu", None)]


def test_if_every_device_fails_the_last_error_ends_the_job() -> None:
    failures = {"vulkan:0": "device_lost", "vulkan:1": "load:out_of_memory", "cpu": "load:model_load_failed"}
    job, _, ending = run(failures, CPU, FIRST, SECOND, fallback="any")
    assert ending and ending.code == "model_load_failed" and len(attempts(job)) == 3
    assert job.receipt and job.receipt.used is None


@pytest.mark.parametrize(
    ("cpu", "code"),
    [
        (replace(CPU, state="broken", reason="x", remedy="y"), "device_not_ready"),
        (replace(CPU, state="quarantined", reason="x", remedy="y"), "quarantined"),
        (replace(CPU, quarantined_models=["stone"]), "quarantined"),
    ],
)
def test_a_fallback_device_that_cannot_run_the_job_gives_the_reason(cpu: Device, code: str) -> None:
    job, _, ending = run({"vulkan:0": "device_lost"}, cpu, FIRST)
    assert ending and ending.code == code and isinstance(ending.__cause__, errors.DeviceLost)
    assert attempts(job) == [("vulkan:0", "device_lost")]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (replace(FIRST, state="broken", reason="x", remedy="y"), "device_not_ready"),
        (replace(FIRST, state="probing", reason="x", remedy="y"), "device_not_ready"),
        (replace(FIRST, quarantined_models=["stone"]), "quarantined"),
        (replace(FIRST, engines=[], served_by={}), "model_incompatible"),
    ],
)
def test_a_refusal_before_any_worker_is_an_attempt_without_a_runtime(broken: Device, code: str) -> None:
    job, _, ending = run({}, CPU, broken)
    assert ending is None and attempts(job) == [("vulkan:0", code), ("cpu", None)]
    assert job.receipt and [attempt.runtime for attempt in job.receipt.attempts] == [None, "base"]
    assert job.receipt.attempts[0].ended_at and job.receipt.resolved == "vulkan:0" and job.receipt.fell_back


def test_an_engine_that_the_request_names_does_not_bind_the_fallback_device() -> None:
    job, _, ending = run({}, CPU, replace(FIRST, engines=[], served_by={}), engine="llama.cpp")
    assert ending is None and attempts(job)[-1] == ("cpu", None)


@pytest.mark.parametrize(("share", "runs_there"), [(1.0, True), (0.5, True), (0.49, False), (0.0, False), (None, True)])
def test_a_model_that_is_mostly_elsewhere_does_not_count_as_run_on_the_device(
    share: float | None, runs_there: bool
) -> None:
    job, _, ending = run({}, CPU, FIRST, share=share, fallback="never")
    assert (ending is None) == runs_there
    assert runs_there or attempts(job) == [("vulkan:0", "placement_too_low")]


NAMED = ("vulkan:0", "vulkan:1")


@pytest.mark.parametrize("policy", ["cpu", "any", "never"])
def test_another_named_device_takes_over_whatever_the_policy(policy: str) -> None:
    job, _, ending = run({"vulkan:0": "device_lost"}, CPU, FIRST, SECOND, names=NAMED, fallback=policy)
    assert ending is None and attempts(job) == [("vulkan:0", "device_lost"), ("vulkan:1", None)]


def test_a_job_may_crash_one_worker_of_its_named_devices_and_not_a_second_one() -> None:
    names = (*NAMED, "vulkan:2")
    third = device("vulkan:2")
    one, _, ending = run({"vulkan:0": "worker_crashed"}, CPU, FIRST, SECOND, third, names=names)
    assert ending is None and attempts(one) == [("vulkan:0", "worker_crashed"), ("vulkan:1", None)]
    failures = dict.fromkeys(names, "worker_crashed")
    two, shop, ending = run(failures, CPU, FIRST, SECOND, third, names=names)
    assert ending and ending.code == "worker_crashed"
    assert [where for where, _ in attempts(two)] == list(NAMED) and shop.deaths.total() == 2


def test_text_of_a_failed_attempt_is_followed_by_the_fallback_event_before_new_text() -> None:
    job, _, _ = run({"vulkan:0": "device_lost"}, CPU, FIRST)
    shown = [(event, data.get("text") or data.get("device") or data.get("to")) for event, data in job.events]
    assert shown == [
        ("loading", "vulkan:0"),
        ("running", "vulkan:0"),
        ("token", "vulkan:0"),
        ("fallback", "cpu"),
        ("loading", "cpu"),
        ("running", "cpu"),
        ("token", "cpu"),
    ]


def test_the_receipt_describes_the_last_attempt_and_adds_up_the_loads() -> None:
    job, _, _ = run({"vulkan:0": "device_lost"}, CPU, FIRST)
    receipt = job.receipt
    assert receipt and (receipt.hardware_id, receipt.counts["tokens"]) == ("of cpu", 3)
    assert receipt.times.load_s == 1.0 and receipt.rate and receipt.rate.value == pytest.approx(2 / 0.2)
