"""Stacks that need an environment, several processes or a worker: a probe service over one stand-in's interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from re import search
from typing import Any

from backend.child import handle
from backend.child.handle import Spawn
from backend.common.types import Device, Hardware
from backend.engines import LoadRequest
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.probing import ProbeService
from backend.scheduling.worker import Limits, Worker, WorkerKey
from tests.faulty_stacks.environments import make
from tests.faulty_stacks.stack import Category, Stack

RUNTIME = "mine"
_LIMITS = Limits(silence_s=30, load_s=60, step_s=60, cancel_s=5)


@dataclass(frozen=True)
class Expected:
    """What the list must say of one device. None: not compared. Reason and remedy are patterns."""

    state: str = "ready"
    name: str | None = None
    kind: str | None = None
    memory_bytes: int | None = None
    hardware_id: str | None = None
    free_bytes: int | None = None
    reason: str = ""
    remedy: str = ""
    note: str = ""


def stack(
    name: str,
    category: Category,
    plan: dict[str, Any],
    expected: Mapping[str, Expected],
    packages: tuple[str, ...] = ("torch",),
    environment: Mapping[str, str] | None = None,
) -> Stack:
    """Return a stack whose list must have exactly these devices, apart from the processor."""

    async def check(folder: Path) -> None:
        _, devices = await probed(folder, plan, packages, environment)
        compare(devices, expected)

    return Stack(name, category, check)


async def probed(
    folder: Path,
    plan: dict[str, Any],
    packages: tuple[str, ...] = ("torch",),
    environment: Mapping[str, str] | None = None,
) -> tuple[ProbeService, dict[str, Device]]:
    """Return a probe service after one round over an interpreter with this plan, and its devices by id."""
    python = make(folder / "env", plan, packages)
    subject = ProbeService({RUNTIME: str(python)}, 60, handle.spawn, DeviceQueue, inventory=_no_hardware)
    with _environment(environment or {}):
        await subject.probe()
    return subject, {id_: device for id_, device in subject.devices.items() if device.kind != "cpu"}


def compare(devices: Mapping[str, Device], expected: Mapping[str, Expected]) -> None:
    """Assert that these are the devices, and that each is as expected."""
    assert set(devices) == set(expected), {id_: device.reason for id_, device in devices.items()}
    for id_, wanted in expected.items():
        device = devices[id_]
        facts = (id_, device.state, device.name, device.reason, device.remedy, device.note)
        assert device.state == wanted.state, facts
        assert (device.proof is not None and device.reason is None) == (wanted.state == "ready"), facts
        for value, asked in (
            (device.name, wanted.name),
            (device.kind, wanted.kind),
            (device.memory_bytes, wanted.memory_bytes),
            (device.memory_free_bytes, wanted.free_bytes),
            (device.hardware_id, wanted.hardware_id),
        ):
            assert asked is None or value == asked, (*facts, value, asked)
        assert search(wanted.reason, device.reason or "") and search(wanted.remedy, device.remedy or ""), facts
        assert search(wanted.note, device.note or ""), facts
        assert wanted.state == "ready" or (str(device.reason).endswith(".") and str(device.remedy).endswith(".")), facts


async def load(folder: Path, subject: ProbeService, id_: str, engine: str, model: Path) -> None:
    """Load a model in a worker of the probed interpreter. Raises what the worker reports."""
    python = str(folder / "env/bin/python")
    detected = subject.detected_device(id_, RUNTIME)
    assert detected is not None
    worker = Worker(WorkerKey(id_, RUNTIME, engine, "a-model"), python, _LIMITS, handle.spawn)
    try:
        await worker.load(engine, LoadRequest(id_, str(model), 64, 1, detected_device=detected))
    finally:
        await worker.close()


async def _no_hardware(spawn: Spawn) -> list[Hardware]:
    return []


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
