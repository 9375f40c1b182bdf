"""Quarantine: three worker deaths of a device and model; a finished job or a release ends it."""

from __future__ import annotations

from backend.common.errors import WorkerCrashed
from backend.scheduling.quarantine import DEATHS, Quarantine

ERROR = WorkerCrashed("It died.", "Again.")


def test_the_third_death_in_a_row_is_one_too_many() -> None:
    quarantine = Quarantine()
    assert [quarantine.record_crash("cpu", "m", ERROR) for _ in range(DEATHS + 1)] == [False, False, True, False]
    assert quarantine.models("cpu") == ["m"] and quarantine.models("cuda:0") == []


def test_a_finished_job_between_deaths_begins_the_count_anew() -> None:
    quarantine = Quarantine()
    for _ in range(5):
        quarantine.record_crash("cpu", "m", ERROR)
        quarantine.record_crash("cpu", "m", ERROR)
        assert ("cpu", "m") in quarantine.last
        quarantine.record_success("cpu", "m")
    assert quarantine.models("cpu") == [] and not quarantine.last


def test_pairs_do_not_mix() -> None:
    quarantine = Quarantine()
    for device, model in (("cpu", "a"), ("cpu", "b"), ("cuda:0", "a")) * 2:
        quarantine.record_crash(device, model, ERROR)
    quarantine.record_success("cpu", "b")
    quarantine.record_crash("cpu", "a", ERROR)
    assert quarantine.models("cpu") == ["a"] and quarantine.models("cuda:0") == []


def test_a_release_is_for_one_model_or_the_whole_device() -> None:
    quarantine = Quarantine()
    for model in "ab":
        for _ in range(DEATHS):
            quarantine.record_crash("cpu", model, ERROR)
    quarantine.release("cpu", "a")
    assert quarantine.models("cpu") == ["b"]
    quarantine.release("cpu")
    assert quarantine.models("cpu") == []
