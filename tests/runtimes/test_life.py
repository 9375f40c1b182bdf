"""Runtimes with real environments and proofs: install, update, go back, remove."""

from __future__ import annotations

import asyncio
import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from backend.common.errors import JobActive, NotFound, Validation
from backend.common.types import Job
from backend.jobs.live_job import LiveJob
from backend.runtimes.types import Runtime
from backend.scheduling.worker import WorkerKey
from backend.scheduling.worker_pool import LoadedModel
from tests.runtimes.stacks import MISSING, NAME, SLOW, WRONG, House, make_wheel

MODEL = Path(__file__).parents[1] / "cases" / "gguf" / "tiny_no_template.gguf"


@pytest.fixture
def bare(house: House) -> House:
    """Nothing of the tiny runtime is there."""
    if house.manager.runtime_service.runtime(NAME).state != "installable":
        house.call(house.manager.runtime_service.remove(NAME))
    return house


@pytest.fixture
def installed(house: House) -> House:
    """Its version 1.0 and nothing else; tests that follow each other hand it on."""
    runtime = house.manager.runtime_service.runtime(NAME)
    if (runtime.state, runtime.packages, runtime.previous) != ("installed", {"tinystack": "1.0"}, None):
        if runtime.state != "installable":
            house.call(house.manager.runtime_service.remove(NAME))
        assert house.run("install")["status"] == "done"
    return house


@pytest.fixture
def updated(house: House, request: pytest.FixtureRequest) -> House:
    """Its version 2.0, from which one can go back."""
    runtime = house.manager.runtime_service.runtime(NAME)
    if (runtime.packages, bool(runtime.previous)) != ({"tinystack": "2.0"}, True):
        request.getfixturevalue("installed")
        assert update_to_2(house)["status"] == "done"
    return house


def update_to_2(house: House) -> dict[str, Any]:
    """Updates while the index has a newer version, which no other test shall find there."""
    wheel = make_wheel(house.index_folder, "2.0", SLOW)
    try:
        return house.run("update")
    finally:
        wheel.unlink()


def version(house: House) -> str | None:
    return house.manager.runtime_service.runtime(NAME).version


@pytest.mark.usefixtures("bare")
def test_what_is_not_installed_says_what_it_would_cost(house: House) -> None:
    runtime = house.manager.runtime_service.runtime(NAME)
    assert (runtime.state, runtime.install_bytes, runtime.download_bytes) == ("installable", 200_000, 20_000)
    assert runtime.remedy and f"runtimes install {NAME}" in runtime.remedy and runtime.version is None


@pytest.mark.usefixtures("bare")
def test_an_install_makes_an_environment_proves_it_and_is_used_at_once(house: House) -> None:
    before = sorted(Path(sysconfig.get_path("purelib")).glob("*"))
    first, second = house.call(twice(house))
    assert first is second and house.ask("install") is first, "the second one at once is the same job"
    with pytest.raises(JobActive):
        house.ask("update")
    with pytest.raises(JobActive):
        house.call(house.manager.runtime_service.remove(NAME))
    job = house.done(first)
    assert job["status"] == "done", job["error"]
    assert "cpu proved" in job["output"]["text"] and TypeAdapter(Job).validate_python(job)
    phases = [event.data["phase"] for event in first.events if event.event == "progress"]
    assert [phase for phase in phases if phase in ("resolve", "download", "store", "prove")]
    assert phases.index("resolve") < phases.index("download") < phases.index("prove")
    runtime = house.manager.runtime_service.runtime(NAME)
    assert runtime.state == "installed" and runtime.packages == {"tinystack": "1.0"} and runtime.bytes
    assert runtime.devices == ["cpu"] and runtime.python and Path(runtime.python).is_relative_to(house.shelf_folder)
    assert NAME in house.manager.directory.device("cpu").served_by and house.manager.pythons[NAME] == runtime.python
    pointer = json.loads((house.shelf_folder / "current").read_text())
    assert pointer == {"current": runtime.version, "previous": None}
    assert not (house.shelf_folder / "current").is_symlink()
    assert sorted(Path(sysconfig.get_path("purelib")).glob("*")) == before, "this environment is as it was"


@pytest.mark.usefixtures("installed")
def test_what_is_whole_is_not_installed_again_but_proved(house: House) -> None:
    job = house.ask("install")
    assert "works: cpu proved" in house.done(job)["output"]["text"]
    assert not [event for event in job.events if event.data.get("phase") == "download"]
    assert house.run("verify")["status"] == "done"


@pytest.mark.usefixtures("installed")
def test_one_that_broke_since_is_told_by_its_list_and_by_health(house: House) -> None:
    packages = next(house.shelf_folder.glob("*/lib/python*/site-packages"))
    (packages / "onnxruntime.py").write_text(MISSING)
    job = house.run("verify")
    assert job["error"]["code"] == "runtime_failed" and "libtiny.so.7" in job["error"]["detail"]
    runtime = house.manager.runtime_service.runtime(NAME)
    assert runtime.state == "broken" and runtime.remedy and f"runtimes remove {NAME}" in runtime.remedy
    subjects = [problem["subject"] for problem in house.manager.health.health()["problems"]]
    assert subjects.count(f"runtime:{NAME}") == 1
    (packages / "onnxruntime.py").unlink()
    assert house.run("verify")["status"] == "done" and house.manager.runtime_service.runtime(NAME).state == "installed"
    assert not house.manager.health.health()["problems"]


@pytest.mark.usefixtures("installed")
def test_an_update_without_anything_newer_says_so(house: House) -> None:
    assert "up to date" in house.run("update")["output"]["text"] and len(house.environments()) == 1


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("number", "shadow", "words"),
    [("1.1", WRONG, "Wrong result"), ("1.2", MISSING, "libtiny.so.7")],
)
def test_an_update_whose_proof_fails_changes_nothing(house: House, number: str, shadow: str, words: str) -> None:
    old = version(house)
    wheel = make_wheel(house.index_folder, number, shadow)
    try:
        job = house.run("update")
    finally:
        wheel.unlink()
    assert job["status"] == "error" and job["error"]["code"] == "runtime_failed"
    assert words in job["error"]["detail"] and job["error"]["remedy"]
    runtime = house.manager.runtime_service.runtime(NAME)
    assert (runtime.state, runtime.version, runtime.previous) == ("installed", old, None)
    assert runtime.reason and words in runtime.reason, "the list says why the last try failed"
    assert house.environments() == {old} and house.manager.directory.device("cpu").state == "ready"
    assert house.run("verify")["status"] == "done"


@pytest.mark.usefixtures("installed")
def test_an_update_switches_when_it_is_proved_and_says_what_became_slower(house: House) -> None:
    old = version(house)
    held = house.call(occupied(house))
    job = update_to_2(house)
    assert job["status"] == "done", job["error"]
    assert "slower than before" in job["output"]["text"] and "rollback" in job["output"]["text"]
    runtime = house.manager.runtime_service.runtime(NAME)
    assert runtime.version != old and runtime.previous == old and runtime.packages["tinystack"] == "2.0"
    assert runtime.reason and "slower" in runtime.reason
    assert held.worker.alive, "a worker of the old version ends its work in peace"
    house.call(released(house, held))
    house.call(gone(held))


@pytest.mark.usefixtures("updated")
def test_a_rollback_goes_back_at_once_and_a_removal_frees_the_disk(house: House) -> None:
    new = version(house)
    runtime = house.call(house.manager.runtime_service.rollback(NAME))
    assert runtime.packages["tinystack"] == "1.0" and runtime.previous == new and runtime.devices == ["cpu"]
    assert runtime.reason is None
    held = house.call(occupied(house))
    with pytest.raises(JobActive, match="Jobs run"):
        house.call(house.manager.runtime_service.remove(NAME))
    house.call(released(house, held))
    assert house.call(house.manager.runtime_service.remove(NAME)) > 0
    assert not held.worker.alive and not house.shelf_folder.exists()
    assert not (house.manager.runtime_service.store.cache).exists()
    assert NAME not in house.manager.directory.device("cpu").served_by and NAME not in house.manager.pythons
    assert house.manager.runtime_service.runtime(NAME).state == "installable"
    with pytest.raises(Validation):
        house.call(house.manager.runtime_service.remove(NAME))
    with pytest.raises(Validation):
        house.call(house.manager.runtime_service.rollback(NAME))


@pytest.mark.usefixtures("bare")
def test_names_that_are_no_runtime_of_ours_are_refused_in_words(house: House) -> None:
    with pytest.raises(NotFound, match="nothing"):
        house.ask("install", "nothing")
    with pytest.raises(Validation, match="own environment"):
        house.ask("install", "base")
    with pytest.raises(Validation, match="Ryzen AI"):
        house.ask("install", "vitisai")
    with pytest.raises(Validation, match="not installed"):
        house.ask("update")


def test_every_runtime_has_the_shape_of_the_contract(house: House) -> None:
    for runtime in house.manager.runtime_service.runtimes():
        assert TypeAdapter(Runtime).validate_python(vars(runtime))
        assert runtime.reason is None or runtime.reason.endswith("."), runtime
        assert (runtime.reason is None) == (runtime.remedy is None), runtime


async def twice(house: House) -> list[LiveJob]:
    """Two who ask at the same moment."""
    asked = (house.manager.runtime_service.submit("install", NAME, "test") for _ in range(2))
    return list(await asyncio.gather(*asked))


async def occupied(house: House) -> LoadedModel:
    """A worker in the tiny runtime that a job uses."""
    key = WorkerKey("cpu", NAME, "llama.cpp", "some-model")
    held, _ = await house.manager.pool.acquire("cpu:0", house.manager.directory.device("cpu"), key, MODEL)
    return held


async def released(house: House, held: LoadedModel) -> None:
    """The job is done with it."""
    house.manager.pool.release(held)


async def gone(held: LoadedModel) -> None:
    """Waits for the end of a worker that nobody uses any more."""
    async with asyncio.timeout(20):
        while held.worker.alive:
            await asyncio.sleep(0.02)
