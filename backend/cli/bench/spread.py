"""`bench spread`: jobs a minute on one device, on two and so on, and one job's variations shared out among them.

A server with the settings of the caller, its queue and history apart. The sets of devices take turns, so that a machine
whose pace changes changes it for all; the first turn of each loads its models and does not count.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.cli.bench.harness.isolated_server import Service, work
from backend.common.config.settings import Settings
from backend.common.errors import Validation
from backend.common.types import JsonObject
from backend.manager.benchmarks.rows import Row, row
from backend.runtimes.user_environments import user_pythons

JOBS_EACH, AT_ONCE_EACH = 8, 2  # per device: jobs of a round, and concurrent clients
VARIATIONS_EACH = 8
TOKENS, SECONDS = 128, 30
WORDS = "Write a very long story about a river, a mill and a miller's daughter."
TUNE = {"form": "reel", "key": "D", "mode": "major", "seconds": SECONDS}


@dataclass(frozen=True)
class Asked:
    """What to run: devices, model, engine."""

    devices: Sequence[str]
    model: str
    engine: str | None = None
    task: str = "music"

    def body(self, devices: Sequence[str], spread: str, **options: Any) -> JsonObject:
        """Return the request of a job on some of the devices."""
        usual = {**TUNE} if self.task == "music" else {"max_tokens": TOKENS, "temperature": 0}
        named = {name: getattr(self, name) for name in ("task", "model", "engine") if getattr(self, name)}
        words = {} if self.task == "music" else {"prompt": WORDS}
        return {
            **named,
            **words,
            "devices": list(devices),
            "spread": spread,
            "fallback": "never",
            "options": {**usual, **options},
        }


def measure(
    settings: Settings, devices: Sequence[str], models: Sequence[str], engines: Sequence[str], runs: int
) -> list[Row]:
    """Measure jobs per minute for each number of devices, with the ratio to one device. Raises Validation."""
    if len(devices) < 2:
        raise Validation("Two or more devices are required.", "Name each with --device.")
    if len(models) > 1 or len(engines) > 1:
        raise Validation("Only one model and one engine can be measured at a time.", "Name at most one of each.")
    model = models[0] if models else settings.default_models.music or ""
    asked = Asked(devices, model, engines[0] if engines else None)
    sets = [asked.devices[: number + 1] for number in range(len(asked.devices))]
    many: dict[int, list[float]] = {len(each): [] for each in sets}
    shared: dict[int, list[float]] = {len(each): [] for each in sets}
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), {}, _kept(settings))
        with service.running():
            asked = replace(asked, task=_task(service, asked.model))
            for number in range(runs + 1):
                turn = number % len(sets)
                for each in [*sets[turn:], *sets[:turn]]:
                    rate = _jobs_a_minute(service, asked, each)
                    share = _shared(service, asked, each) if asked.task == "music" else None
                    if number:
                        many[len(each)].append(rate)
                        shared[len(each)] += [share] if share is not None else []
    rows = [_row("jobs", "a minute", many, len(each), sets) for each in sets]
    return rows + [_row("variations", "a minute", shared, len(each), sets) for each in sets if shared[len(each)]]


def _task(service: Service, model: str) -> str:
    """Return the model's task. Raises Validation unless it is text or music."""
    tasks = {model["id"]: model["task"] for model in service.ask("GET", "/api/models")["models"]}
    if (task := tasks.get(model)) not in ("text", "music"):
        raise Validation(f"The model {model} is not a text or music model.", f"Choose one of {', '.join(tasks)}.")
    return str(task)


def _jobs_a_minute(service: Service, asked: Asked, devices: Sequence[str]) -> float:
    """Run clients that submit one job after another; any of the devices may run it."""
    began = time.perf_counter()
    jobs = JOBS_EACH * len(devices)
    work(service.address, asked.body(devices, "first_free"), jobs, AT_ONCE_EACH * len(devices))
    return 60 * jobs / (time.perf_counter() - began)


def _shared(service: Service, asked: Asked, devices: Sequence[str]) -> float:
    """Measure variations per minute of one job that the devices share. Raises RuntimeError."""
    variations = min(16, VARIATIONS_EACH * len(asked.devices))
    body = asked.body(devices, "parallel", variations=variations)
    began = time.perf_counter()
    job = service.ask("POST", "/api/generate", body)
    if job.get("status") != "done" or set(job["receipt"]["used"].split(", ")) != set(devices):
        raise RuntimeError(json.dumps(job)[:2000])
    return 60 * variations / (time.perf_counter() - began)


def _row(what: str, unit: str, rates: dict[int, list[float]], number: int, sets: Sequence[Sequence[str]]) -> Row:
    values, alone = rates[number], rates[1]
    devices = ", ".join(sets[number - 1])
    found = row(f"{what} on {devices}", values, f"{what} {unit}", device=devices)
    base = row("", alone, "").value
    return row(found.metric, values, found.unit, device=devices, ratio=found.value / base if number > 1 else None)


def _kept(settings: Settings) -> JsonObject:
    """Return the settings that determine what runs: interpreters and models."""
    models = {
        name: {key: str(value) if isinstance(value, Path) else value for key, value in vars(one).items() if value}
        for name, one in settings.models.items()
    }
    runtimes = {name: {"python": python} for name, python in user_pythons(settings).items()}
    return {"runtimes": runtimes, **({"models": models} if models else {})}
