"""The matrix of stacks: each is judged as it should be. `conftest.py` prints "N stacks, 0 wrong".

The cases have real interpreters with stand-in packages, from `runtimes: {NAME: {python}}` to the device list. The stage
`stacks` judges some stacks of each kind; without `-m "not by_hand"`, pytest judges all.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
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
from tests.faulty_stacks.stack import Category, Stack, parameters
from tests.faulty_stacks.stacks import STACKS

# The least number of stacks by category, and of all.
LEAST: dict[Category, int] = {
    "control": 30,
    "windows": 15,
    "visibility": 10,
    "interpreter": 20,
    "numbers": 20,
    "receipt": 15,
}
LEAST_OF_ALL = 150
AT_ONCE = 6
TOGETHER = 8
LIMIT_S = 12.0

Answer = dict[str, Any]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Return the device list's entries of each case that this session judges."""
    callspecs = (getattr(item, "callspec", None) for item in request.session.items)
    chosen = [callspec.params["case"] for callspec in callspecs if callspec and "case" in callspec.params]
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

        found = await asyncio.gather(*(one(number, cases) for number, cases in enumerate(machines(chosen))))
        return {name: said for part in found for name, said in part.items()}

    with pytest.MonkeyPatch.context() as patch:  # one hardware inventory for all of them
        return asyncio.run(all_of_them())


def machines(cases: Sequence[Case]) -> list[list[Case]]:
    """Group the stacks by machine: stacks with one card share a machine, others have their own."""
    sharing = [case for case in cases if case.shares]
    return [[case] for case in cases if not case.shares] + [
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


@pytest.mark.parametrize("case", parameters(CASES))
def test_stack(case: Case, answers: dict[str, Answer]) -> None:
    check_device(case, answers[case.name])
    if not case.shares:
        check_no_other_is_ready(case, answers[case.name])


def check_device(case: Case, answer: Answer) -> None:
    """Assert that the case's device is listed as expected."""
    device = device_of(case, answer)
    listed = {name: device[name] for name in ("state", "stage", "layer", "reason", "remedy", "note")}
    assert (device["state"], device["stage"]) == (case.state, case.stage), listed
    assert (device["state"] == "ready") == (device["reason"] is None) and (
        device["state"] != "ready" or device["proof"]
    )
    if case.state == "ready":
        assert (
            device["proof"]["max_abs_error"] <= device["proof"]["tolerance"] and device["proof"]["pid"] != os.getpid()
        )
    else:
        assert device["layer"] and (case.layer in (None, device["layer"])), listed
        reason = case.reason.replace(case.device, device["id"])
        assert re.search(reason, device["reason"], re.DOTALL) and device["reason"].endswith("."), listed
        assert re.search(case.remedy, device["remedy"], re.DOTALL) and device["remedy"].endswith("."), listed
    for name, value in case.also.items():
        if name == "no_secret":
            assert SECRET not in json.dumps(answer)
        elif name == "note":
            assert re.search(value, device["note"] or "")
        elif name in ("lacks", "unusable"):  # patterns by engine, or by data type
            found = device["proof"]["unusable"] if name == "unusable" else device["lacks"]
            assert all(re.search(pattern, found.get(key, ""), re.DOTALL) for key, pattern in value.items()), found
        else:
            assert device[name] == value


def check_no_other_is_ready(case: Case, answer: Answer) -> None:
    """Assert that the stack made no device of another backend ready."""
    ready = {device["backend"] for device in answer["devices"] if device["state"] == "ready"} - {"cpu"}
    assert ready <= {case.device.partition(":")[0]} and bool(ready) <= (case.state == "ready" or case.several)


def test_matrix_is_as_wide_as_promised() -> None:
    stacks: list[Case | Stack] = [*CASES, *STACKS]
    names = Counter(stack.name for stack in stacks)
    assert names.most_common(1)[0][1] == 1, names.most_common(3)
    categories = Counter(stack.category for stack in stacks)
    assert all(categories[name] >= least for name, least in LEAST.items()), categories
    assert len(stacks) >= LEAST_OF_ALL, len(stacks)
    mechanisms = Counter(case.mechanism for case in CASES)
    assert len(mechanisms) >= 12, mechanisms


@pytest.mark.parametrize("document", ["README.md", "docs/devices.md"])
def test_document_states_the_number_of_stacks(document: str) -> None:
    text = Path(document).read_text(encoding="utf-8")
    assert f"{len(CASES) + len(STACKS)} stacks, 0 wrong" in text
