"""Faulty libraries, each in a real interpreter, from `runtimes: {NAME: {python}}` to the device list."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.child.handle import Spawn, spawn
from backend.common.config.settings import load_settings
from backend.common.types import Hardware
from backend.manager.core import Core
from backend.manager.runtime_service.description import BASE
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.inventory import query_hardware
from tests.faulty_stacks.cases import CASES, SECRET, Case, card
from tests.faulty_stacks.environments import make

AT_ONCE = 6
TOGETHER = 8
LIMIT_S = 12.0

Answer = dict[str, Any]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Return the device list's entries of each stack."""
    home = tmp_path_factory.mktemp("stacks")

    async def all_of_them() -> dict[str, Answer]:
        places = asyncio.Semaphore(AT_ONCE)
        surveyed = await query_hardware(spawn)

        async def known(spawn: Spawn) -> list[Hardware]:
            return surveyed

        patch.setattr("backend.scheduling.device_directory.ProbeService", partial(ProbeService, inventory=known))

        async def one(number: int, cases: list[Case]) -> dict[str, Answer]:
            async with places:
                said = await answer(home / str(number), cases)
            return {case.name: said for case in cases}

        found = await asyncio.gather(*(one(number, cases) for number, cases in enumerate(machines())))
        return {name: said for part in found for name, said in part.items()}

    with pytest.MonkeyPatch.context() as patch:  # one hardware inventory for all of them
        return asyncio.run(all_of_them())


def machines() -> list[list[Case]]:
    """Group the stacks by machine: stacks with one card share a machine, others have their own."""
    sharing = [case for case in CASES if case.shares]
    return [[case] for case in CASES if not case.shares] + [
        sharing[start : start + TOGETHER] for start in range(0, len(sharing), TOGETHER)
    ]


async def answer(folder: Path, cases: list[Case]) -> Answer:
    """Return the body of GET /api/devices on a machine with those stacks, each with one card.

    The processor's runtime is omitted unless a case needs it.
    """
    runtimes = {}
    for number, case in enumerate(cases):
        plan = case.plan | ({"cards": [card(number)]} if case.shares else {})
        runtimes[case.name.lower()] = {"python": str(make(folder / case.name, plan, case.packages))}
    config = folder / "config.json"
    processor = any(case.mechanism == "slow" for case in cases)
    settings = {
        "runtimes": runtimes,
        "devices": {"cpu": {"enabled": processor}},
        "supervision": {"probe_s": LIMIT_S},
        "storage": {"data_dir": "data"},
    }
    config.write_text(json.dumps(settings))  # JSON is also YAML
    core = Core(load_settings({"config": str(config)}, {}))
    if not processor:
        del core.pythons[BASE]
    await core.probe_only()
    return core.health.device_list()


def device_of(case: Case, answer: Answer) -> dict[str, Any]:
    """Return the device of the case: by id, or on a shared machine by runtime."""
    found: list[dict[str, Any]] = answer["devices"]
    if case.shares:
        return next(
            device for device in found if case.name.lower() in device["runtimes"] and device["backend"] != "cpu"
        )
    return next(device for device in found if device["id"] == case.device)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_stated_for_what_it_is(case: Case, answers: dict[str, Answer]) -> None:
    device = device_of(case, answers[case.name])
    said = {name: device[name] for name in ("state", "stage", "layer", "reason", "remedy", "note")}
    assert (device["state"], device["stage"]) == (case.state, case.stage), said
    assert (device["state"] == "ready") == (device["reason"] is None) and (
        device["state"] != "ready" or device["proof"]
    )
    if case.state == "ready":
        assert (
            device["proof"]["max_abs_error"] <= device["proof"]["tolerance"] and device["proof"]["pid"] != os.getpid()
        )
    else:
        assert device["layer"] and (case.layer in (None, device["layer"])), said
        reason = case.reason.replace(case.device, device["id"])
        assert re.search(reason, device["reason"], re.DOTALL) and device["reason"].endswith("."), said
        assert re.search(case.remedy, device["remedy"], re.DOTALL) and device["remedy"].endswith("."), said
    for name, value in case.also.items():
        if name == "no_secret":
            assert SECRET not in json.dumps(answers[case.name])
        elif name == "note":
            assert re.search(value, device["note"] or "")
        else:
            assert device[name] == value


def test_no_stack_made_another_device_ready(answers: dict[str, Answer]) -> None:
    for case in CASES:
        if not case.shares:
            ready = {device["backend"] for device in answers[case.name]["devices"] if device["state"] == "ready"} - {
                "cpu"
            }
            assert ready <= {case.device.partition(":")[0]} and bool(ready) <= (case.state == "ready" or case.several)


def test_the_matrix_is_as_wide_as_promised() -> None:
    widths = Counter(case.mechanism for case in CASES)
    assert len(widths) >= 12 and min(widths.values()) >= 5, widths
    assert len({case.name for case in CASES}) == len(CASES)
