"""What the service says of itself: metrics of ended jobs, gauges, the health report and the list of devices."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backend.common.config.settings import load_settings
from backend.common.errors import DiskFull, WorkerCrashed
from backend.common.types import Attempt, Device, Proof, Receipt, Times
from backend.devices import backends
from backend.manager.benchmarks.history import Measurements
from backend.manager.health import HealthReporter
from backend.manager.metrics import Gauges, Metrics
from backend.models import Catalogue
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.probing.device_table import RuntimeProblem
from backend.scheduling.quarantine import Combination, WorkerDeath

AT = "2026-01-01T00:00:00.000Z"
PROOF = Proof("matmul", "float32", 0.0, 1e-3, 0.25, {}, AT, 7)


def attempt(device: str, error: str | None = None) -> Attempt:
    return Attempt(device, "base", "llama.cpp", AT, AT, error)


def job(status: str = "done", task: str = "text", **facts: Any) -> dict[str, Any]:
    """Return an ended job as the API shows it; without facts no worker got it."""
    receipt = asdict(replace(Receipt("auto", "cpu", "Because."), **facts)) if facts else None
    return {"task": task, "status": status, "receipt": receipt}


def series(metrics: Metrics) -> dict[str, float]:
    """Return the values of the service's own metrics, by name and labels in the order of Prometheus."""
    values = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name != "le")
            if sample.name.startswith("touchstone") and not sample.name.endswith(("_created", "_bucket")):
                values[f"{sample.name.removeprefix('touchstone_')}{{{labels}}}"] = sample.value
    return values


LOST = attempt("cuda:0", "device_lost")
JOBS: list[tuple[str, dict[str, Any], dict[str, float]]] = [
    ("no worker got it", job("cancelled"), {"jobs_total{device=none,status=cancelled,task=text}": 1}),
    (
        "a text that was generated",
        job(used="cpu", attempts=[attempt("cpu")], counts={"tokens": 5}, times=Times(0.1, 1.0, 0.2, 2.0, 3.5)),
        {
            "jobs_total{device=cpu,status=done,task=text}": 1,
            "tokens_total{device=cpu,task=text}": 5,
            "audio_seconds_total{device=cpu,task=text}": 0,
            "first_token_seconds_count{device=cpu,task=text}": 1,
            "first_token_seconds_sum{device=cpu,task=text}": 0.2,
            "job_seconds_count{device=cpu,task=text}": 1,
            "job_seconds_sum{device=cpu,task=text}": 3.5,
        },
    ),
    (
        "a worker without evidence",
        job(used=None, attempts=[attempt("cuda:0")]),
        {
            "jobs_total{device=unknown,status=done,task=text}": 1,
            "tokens_total{device=unknown,task=text}": 0,
            "audio_seconds_total{device=unknown,task=text}": 0,
        },
    ),
    (
        "a fallback that succeeded",
        job(
            used="cpu", attempts=[attempt("cuda:0", "device_lost"), attempt("cuda:1", "out_of_memory"), attempt("cpu")]
        ),
        {
            "jobs_total{device=cpu,status=done,task=text}": 1,
            "tokens_total{device=cpu,task=text}": 0,
            "audio_seconds_total{device=cpu,task=text}": 0,
            "fallbacks_total{device=cuda:0,reason=device_lost}": 1,
            "fallbacks_total{device=cuda:1,reason=out_of_memory}": 1,
        },
    ),
    (
        "a failure of the last device, which falls back to nothing",
        job(
            "error",
            attempts=[attempt("cuda:0", "device_lost"), attempt("cpu", "worker_crashed")],
            times=Times(total_s=3),
        ),
        {
            "jobs_total{device=cpu,status=error,task=text}": 1,
            "tokens_total{device=unknown,task=text}": 0,
            "audio_seconds_total{device=unknown,task=text}": 0,
            "fallbacks_total{device=cuda:0,reason=device_lost}": 1,
        },
    ),
    (
        "a tune of two devices",
        job(
            task="music",
            used="a, b",
            audio_s=9.0,
            attempts=[attempt("a"), attempt("b")],
            parts=[
                replace(Receipt("a", "a", ""), used=name, audio_s=length) for name, length in (("a", 6.0), ("b", 3.0))
            ],
        ),
        {
            "jobs_total{device=a, b,status=done,task=music}": 1,
            "tokens_total{device=a,task=music}": 0,
            "tokens_total{device=b,task=music}": 0,
            "audio_seconds_total{device=a,task=music}": 6,
            "audio_seconds_total{device=b,task=music}": 3,
        },
    ),
]


@pytest.mark.parametrize(("ended", "expected"), [each[1:] for each in JOBS], ids=[each[0] for each in JOBS])
def test_an_ended_job_is_counted_where_it_ran(ended: dict[str, Any], expected: dict[str, float]) -> None:
    metrics = Metrics()
    metrics.count_job(ended)
    assert series(metrics) == expected
    metrics.count_job(ended)
    assert series(metrics) == {name: 2 * value for name, value in expected.items()}


def device(id_: str, **more: Any) -> Device:
    backend = backends()[id_.partition(":")[0]]
    return Device(id_, id_, backend.name, **{"kind": backend.kind, "state": "ready", "tasks": ["text"], **more})


class Service:
    """A health reporter and gauges over a real device directory, without any process."""

    def __init__(self, folder: Path, *devices: Device, **more: Any) -> None:
        self.settings = load_settings({"storage.data_dir": str(folder / "data")}, {})
        self.directory = DeviceDirectory(
            self.settings,
            {},
            cast(Any, None),
            start_task=lambda work: cast(Any, work.close()),
            measurements=Measurements(),
            measured_speeds=lambda each: [],
            is_occupied=lambda each: False,
            on_change=lambda each: None,
        )
        self.directory.probes.devices.update({each.id: each for each in devices})
        self.counts = {"queued": 0, "loading": 0, "running": 0}
        self.registry = SimpleNamespace(
            count=lambda *statuses: sum(self.counts[status] for status in statuses),
            storage_error=None,
            corrupt_backup=None,
        )
        self.pool = SimpleNamespace(workers=list, loaded_models=list)
        self.free_bytes: int | None = 10**12
        self.more = more

    def reporter(self) -> HealthReporter:
        return HealthReporter(
            self.settings,
            cast(Any, SimpleNamespace(id="server")),
            Catalogue(self.settings, environ={}),
            self.directory,
            cast(Any, self.pool),
            cast(Any, self.registry),
            uptime_s=lambda: 5.0,
            disk_free_bytes=lambda: self.free_bytes,
            shares_worker=lambda model: False,
            problem_sources=self.more.get("sources", ()),
        )

    def health(self) -> dict[str, Any]:
        return self.reporter().health()

    def gauges(self) -> dict[str, float]:
        metrics = Metrics()
        metrics.register(
            Gauges(
                self.directory,
                cast(Any, self.pool),
                cast(Any, self.registry),
                uptime_s=lambda: 5.0,
                disk_free_bytes=lambda: self.free_bytes,
            )
        )
        return series(metrics)


def codes(health: dict[str, Any]) -> list[tuple[str, str]]:
    assert all(problem["detail"] and problem["remedy"] for problem in health["problems"])
    return [(problem["subject"], problem["code"]) for problem in health["problems"]]


def test_a_service_is_starting_until_its_first_probe_began_and_ok_without_failures(tmp_path: Path) -> None:
    service = Service(tmp_path, device("cpu"), device("cuda:0", state="unavailable"))
    assert service.health()["status"] == "starting"
    service.directory.probes.started = True
    service.counts = {"queued": 3, "loading": 1, "running": 2}
    health = service.health()
    assert (health["status"], health["id"], health["uptime_s"]) == ("ok", "server", 5.0)
    assert health["jobs"] == {"queued": 3, "running": 3}
    assert health["devices"]["ready"] == 1 == health["devices"]["unavailable"] and health["devices"]["broken"] == 0
    assert health["problems"] == [], "a device that is not there is no problem"


@pytest.mark.parametrize("state", ["broken", "quarantined"])
def test_a_device_that_failed_degrades_the_service(tmp_path: Path, state: Any) -> None:
    service = Service(tmp_path, device("cpu"), device("cuda:0", state=state, reason="It failed.", remedy="Look."))
    service.directory.probes.started = True
    assert service.health()["status"] == "degraded" and codes(service.health()) == [("cuda:0", state)]


def test_a_service_without_a_ready_device_is_degraded_and_names_the_first_thing_to_do(tmp_path: Path) -> None:
    broken = device("cpu", state="broken", reason="It failed.", remedy="Repair it.")
    service = Service(tmp_path, broken, device("cuda:0", state="unavailable", remedy="Install it."))
    assert ("devices", "no_device") not in codes(service.health()), "not before the first probes ended"
    service.directory.probes.started = True
    assert service.health()["status"] == "degraded"
    assert codes(service.health()) == [("cpu", "broken"), ("devices", "no_device")]
    assert service.health()["problems"][1]["remedy"] == "Repair it."
    service.directory.probes.devices["cpu"] = device("cpu", state="probing")
    assert service.health()["problems"] == []
    service.directory.probes.devices.clear()
    assert "doctor" in service.health()["problems"][0]["remedy"]


def test_the_list_of_devices_answers_for_missing_cards_once_they_were_probed(tmp_path: Path) -> None:
    service = Service(tmp_path, device("cpu"))
    assert service.reporter().device_list()["missing"] == []
    service.directory.probes.started = True
    (answer,) = service.reporter().device_list()["missing"]
    assert answer["hardware_id"] is None and set(answer) >= {"name", "bus", "driver", "runtimes", "remedy"}


def test_a_history_that_cannot_be_written_degrades_the_service(tmp_path: Path) -> None:
    service = Service(tmp_path, device("cpu"))
    service.directory.probes.started = True
    service.registry.storage_error = DiskFull("The disk is full.", "Free some space.")
    assert service.health()["status"] == "degraded" and codes(service.health()) == [("storage", "disk_full")]


def test_what_the_service_can_live_with_is_told_and_degrades_nothing(tmp_path: Path) -> None:
    slower = {"subject": "cpu", "code": "slower_after_update", "detail": "It is slower.", "remedy": "Go back."}
    service = Service(tmp_path, device("cpu"), sources=[lambda: [slower]])
    service.directory.probes.started = True
    service.registry.corrupt_backup = tmp_path / "corrupt"
    service.free_bytes = 1000
    service.directory.probes.table.runtime_problems["torch"] = RuntimeProblem("It does not start.", "Reinstall it.")
    place = Combination("cpu", "llama.cpp", "stone")
    service.directory.record_worker_death(WorkerDeath(place, WorkerCrashed("It died.", "Rerun the job.")))
    health = service.health()
    assert health["status"] == "ok"
    assert codes(health) == [
        ("storage", "history_damaged"),
        ("storage", "disk_low"),
        ("runtime:torch", "runtime_broken"),
        ("cpu", "slower_after_update"),
        ("cpu", "worker_crashed"),
    ]
    assert str(tmp_path / "corrupt") in health["problems"][0]["detail"]
    service.directory.quarantine.record_success(place)
    assert ("cpu", "worker_crashed") not in codes(service.health()), "a finished job ends the warning"


@pytest.mark.parametrize("free_bytes", [None, 500_000_000, 10**12])
def test_a_disk_with_enough_or_unknown_space_is_no_problem(tmp_path: Path, free_bytes: int | None) -> None:
    service = Service(tmp_path, device("cpu"))
    service.free_bytes = free_bytes
    assert service.health()["problems"] == []
    assert ("disk_free_bytes{}" in service.gauges()) == (free_bytes is not None)


def test_gauges_show_one_state_for_each_device_and_the_length_of_each_queue(tmp_path: Path) -> None:
    service = Service(tmp_path, device("cpu", proof=PROOF), device("cuda:0", state="broken"))
    service.counts["running"] = 2
    service.directory.queue("pci:1")
    key = SimpleNamespace(device="cpu", model="stone")
    service.pool.workers = lambda: [SimpleNamespace(key=key, resident_bytes=77)]
    gauges = service.gauges()
    for name in ("cpu", "cuda:0"):
        states = {label: value for label, value in gauges.items() if label.startswith(f"device_state{{device={name},")}
        assert len(states) == 6 and sum(states.values()) == 1
    assert gauges["device_state{device=cuda:0,state=broken}"] == 1
    assert gauges["proof_seconds{device=cpu}"] == 0.25 and "proof_seconds{device=cuda:0}" not in gauges
    assert gauges["queue_length{hardware=pci:1}"] == 0 and gauges["live_jobs{status=running}"] == 2
    assert gauges["worker_memory_bytes{device=cpu,model=stone}"] == 77 and gauges["uptime_seconds{}"] == 5


def test_the_list_of_devices_tells_what_auto_would_choose_for_each_model(tmp_path: Path) -> None:
    service = Service(
        tmp_path, device("cpu"), device("cuda:0", memory_free_bytes=5), device("vulkan:0", tasks=["music"])
    )
    answer = service.reporter().device_list()
    assert [each["id"] for each in answer["devices"]] == ["cpu", "cuda:0", "vulkan:0"]
    assert answer["default"] == "cuda:0" and "cuda:0" in answer["default_reason"]
    assert answer["auto"]["smollm2-135m-instruct"]["device"] == "cuda:0"
    assert answer["auto"]["folk-tunes"]["device"] == "vulkan:0", "another task has another choice"
    free = {each["id"]: each["memory_free_bytes"] for each in answer["devices"]}
    assert free["cuda:0"] == 5 and free["cpu"] > 1_000_000, "the machine's memory is read now"
    assert Service(tmp_path, device("cuda:0", state="broken")).reporter().device_list()["default"] is None
