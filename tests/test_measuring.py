"""Measurements: stored, used only while nothing changed, compared across updates, taken on an idle machine."""

from __future__ import annotations

import array
import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.common.errors import Validation
from backend.common.system import power
from backend.common.types import Device, Speed
from backend.manager.benchmarks import table
from backend.manager.benchmarks.agreement import agreement, sound_error
from backend.manager.benchmarks.history import KEPT, Measurement, Measurements
from backend.manager.benchmarks.regressions import regressions
from backend.manager.benchmarks.trial import Sample

CARD = Device("cuda:0", "A card", "cuda", "gpu", "ready", hardware_id="pci:1", versions={"torch": "2.1", "numpy": "2"},
              served_by={"torch": ["transformers"], "base": ["llama.cpp"]})  # fmt: skip


def measured(value: float, torch: str = "2.1", driver: str | None = "550", at: int = 1, **more: Any) -> Measurement:
    moment = f"2026-01-{at:02}T00:00:00.000Z"
    speed = Speed("stone", "transformers", value, "tokens/s", moment, value * 0.99, value * 1.01)
    facts: dict[str, Any] = {"threads": 2, "model_bytes": 7, "speed": speed, "runs": 5, "touchstone": "1"}
    return Measurement("cuda:0", "A card", "pci:1", driver, "torch", {"torch": torch}, **{**facts, **more})


def test_what_was_measured_is_there_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "measurements.json"
    book = Measurements(file)
    book.add([measured(100), measured(90, torch="2.2", at=2)])
    again = Measurements(file)
    again.open()
    assert again.all() == book.all() and [one.speed.value for one in again.all("cuda:0", "stone")] == [100, 90]
    assert [one.speed.value for one in again.valid(lambda one: True)] == [90]
    assert [one.speed.value for one in again.valid(lambda one: one.versions["torch"] == "2.1")] == [100]
    assert again.all("cpu") == [] and again.all(model="pebble") == []


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"format": 1, "measurements": [{}]}', '{"format": 9}'])
def test_a_file_that_cannot_be_read_counts_as_empty_and_is_written_anew(tmp_path: Path, content: str) -> None:
    file = tmp_path / "measurements.json"
    file.write_text(content)
    book = Measurements(file)
    book.open()
    assert book.all() == []
    book.add([measured(100)])
    assert len(json.loads(file.read_text())["measurements"]) == 1


def test_the_oldest_of_each_subject_are_forgotten() -> None:
    book = Measurements()
    other = measured(1, speed=Speed("pebble", "transformers", 1, "tokens/s", ""))
    book.add([other, *(measured(value) for value in range(1, KEPT + 6))])
    assert len(book.all(model="stone")) == KEPT and book.all(model="stone")[0].speed.value == 6
    assert book.all(model="pebble") == [other]


def test_it_counts_only_for_the_same_card_driver_runtime_and_versions() -> None:
    one = measured(100)
    assert one.counts_for(CARD, "550")
    assert one.counts_for(replace(CARD, versions={"torch": "2.1", "numpy": "3"}), "550"), "the engine does not use it"
    for changed in (
        replace(CARD, name="Another card"),
        replace(CARD, hardware_id="pci:2"),
        replace(CARD, versions={"torch": "2.2"}),
        replace(CARD, served_by={"base": ["transformers"]}),
    ):
        assert not one.counts_for(changed, "550")
    assert not one.counts_for(CARD, "560")


def test_what_became_slower_with_an_update_is_a_problem_with_figures_and_a_way_back() -> None:
    [found] = regressions([measured(120), measured(119, at=2), measured(70, torch="2.2", driver="560", at=3)])
    problem = found.problem
    assert problem["subject"] == "cuda:0" and problem["code"] == "slower_after_update"
    assert problem["detail"] == (
        "stone with transformers is 41% slower on cuda:0 since an update: 119 → 70 tokens/s; "
        "changed: torch 2.1 → 2.2, driver 550 → 560."
    )
    assert "`python -m backend runtimes rollback torch`" in str(
        problem["remedy"]
    ) and "`python -m backend bench devices" in str(problem["remedy"])


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([measured(120), measured(70, at=2)], "nothing changed between the two"),
        ([measured(120), measured(97, torch="2.2", at=2)], "less than a fifth"),
        ([measured(120), measured(150, torch="2.2", at=2)], "it is faster"),
        ([measured(120), measured(70, torch="2.2", model_bytes=9)], "it is another file"),
        ([measured(120), measured(70, torch="2.2", at=2), measured(118, torch="2.2", at=3)], "it is over"),
        ([measured(120)], "there is but one"),
    ],
)
def test_what_is_no_regression(history: list[Measurement], why: str) -> None:
    assert regressions(history) == [], why


def test_what_a_busy_machine_measured_gives_way_to_what_a_calm_one_did() -> None:
    book = Measurements()
    book.add([measured(50, busy=True)])
    assert [one.speed.value for one in book.valid(lambda one: True)] == [50], "better than nothing"
    book.add([measured(100, at=2), measured(40, at=3, busy=True)])
    assert [one.speed.value for one in book.valid(lambda one: True)] == [100]
    assert regressions([measured(120), measured(70, torch="2.2", at=2, busy=True)]) == []


def test_a_wide_spread_is_no_regression() -> None:
    wide = replace(measured(1).speed, value=90, low=60, high=118)
    assert regressions([measured(120), measured(90, torch="2.2", at=2, speed=wide)]) == []


def test_the_way_back_fits_what_changed() -> None:
    base = replace(measured(120), runtime="base")
    [package] = regressions([base, replace(measured(70, torch="2.2", at=2), runtime="base")])
    assert "`python -m pip install torch==2.1`" in str(package.problem["remedy"])
    [driver] = regressions([measured(120), measured(70, driver="560", at=2)])
    assert "driver 550" in str(driver.problem["remedy"])
    [own] = regressions([measured(120), measured(70, at=2, touchstone="2")])
    assert "Report it" in str(own.problem["remedy"]) and "Touchstone 1 → 2" in str(own.problem["detail"])


def test_agreement_is_what_comes_before_the_first_difference() -> None:
    assert agreement(Sample(tuple("abcd")), Sample(tuple("abxd"))) == 0.5
    assert agreement(Sample(tuple("abcd")), Sample(tuple("abcd"))) == 1
    assert agreement(Sample(), Sample(tuple("ab"))) is None


def test_sounds_are_compared_only_if_they_are_of_the_same_notes(tmp_path: Path) -> None:
    files = [_sound(tmp_path / f"{name}.wav", peak) for name, peak in (("one", 16384), ("other", 16384 - 328))]
    one, other = (Sample(("C", "D"), file) for file in files)
    assert sound_error(one, other) == pytest.approx(0.01, abs=1e-4) and sound_error(one, one) == 0
    assert sound_error(one, replace(other, tokens=("C", "E"))) is None
    assert sound_error(one, Sample(("C", "D"))) is None


def _sound(path: Path, peak: int) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(array.array("h", [0, peak, -peak, 0]).tobytes())
    return path


def test_two_results_side_by_side_tell_what_differs_beyond_the_noise() -> None:
    row = {"metric": "decode", "unit": "tokens/s", "device": "cpu", "engine": "llama.cpp", "model": "stone"}

    def result(value: float, **more: Any) -> dict[str, Any]:
        return {"at": "2026", "rows": [{**row, "value": value, "low": value - 1, "high": value + 1, **more}]}

    said = table.compared(table.checked(result(100), "a"), table.checked(result(50), "b"))
    assert "| stone | cpu, llama.cpp | decode, tokens/s | 100 (99–101) | 50 (49–51) | -50% |" in said
    assert "within the noise" in table.compared(table.checked(result(100), "a"), table.checked(result(103), "b"))
    busy = {**result(50), "measured": [{"busy": True}]}
    assert "during the second: " in table.compared(table.checked(result(100), "a"), table.checked(busy, "b"))
    with pytest.raises(Validation, match="no figure in common"):
        table.compared(table.checked(result(1), "a"), table.checked(result(1, model="pebble"), "b"))
    broken: list[Any] = [None, [], {"rows": [{}]}, {"rows": 7}]
    for nonsense in broken:
        with pytest.raises(Validation, match="is not a benchmark result"):
            table.checked(nonsense, "file")


@pytest.mark.parametrize(
    ("supplies", "battery"),
    [
        ({}, False),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Charging"}}, False),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"mouse": {"type": "Battery", "status": "Discharging", "scope": "Device"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Not charging"}}, False),
    ],
)
def test_a_laptop_on_battery_is_told_from_a_desktop(tmp_path: Path, supplies: Any, battery: bool) -> None:
    for name, files in supplies.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content + "\n")
    assert power.on_battery(tmp_path) is battery
    assert power.on_battery(tmp_path / "nowhere") is False


def test_the_processors_tell_what_they_take(tmp_path: Path) -> None:
    for name, joules in (("intel-rapl:0", 5), ("intel-rapl:1", 7), ("intel-rapl:0:0", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{joules}000000\n")
    assert power.processor_j(tmp_path) == 12, "a part of a package is counted with it"
    assert power.processor_j(tmp_path / "nowhere") is None


def test_a_book_without_a_place_to_write_still_serves(tmp_path: Path) -> None:
    book = Measurements(tmp_path / "missing" / "measurements.json")
    book.add([measured(100)])
    assert len(book.all()) == 1
