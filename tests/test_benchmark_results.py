"""Benchmark results: rows with medians, tables, comparisons, valid measurements, and what a request may ask."""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.errors import Validation
from backend.common.types import Device, Speed
from backend.manager.benchmarks import rows, table
from backend.manager.benchmarks.agreement import agreement
from backend.manager.benchmarks.history import Measurement, Measurements
from backend.manager.benchmarks.regressions import regressions
from backend.manager.benchmarks.request import parse_benchmark_request
from backend.manager.benchmarks.trial import Sample

CARD = Device("cuda:0", "A card", "cuda", "gpu", "ready", hardware_id="pci:1", versions={"torch": "2.1"},
              served_by={"torch": ["transformers"]})  # fmt: skip


def measured(value: float, day: int = 1, spread: float = 0.01, unit: str = "tokens/s", **more: Any) -> Measurement:
    at = f"2026-01-{day:02}T00:00:00.000Z"
    speed = Speed("stone", "transformers", value, unit, at, value * (1 - spread), value * (1 + spread))
    facts: dict[str, Any] = {"threads": 2, "model_bytes": 7, "runs": 5, "driver": "550", "versions": {"torch": "2.1"}}
    facts |= {"card": "A card", "hardware_id": "pci:1", "runtime": "torch"}
    return Measurement("cuda:0", speed=speed, **{**facts, **more})


rates = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=12)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(rates, st.randoms(use_true_random=False))
def test_a_row_is_the_median_with_quartiles_whatever_the_order_of_the_runs(values: list[float], shuffle: Any) -> None:
    first = rows.row("rate", values, "tokens/s")
    shuffled = list(values)
    shuffle.shuffle(shuffled)
    assert rows.row("rate", shuffled, "tokens/s") == first
    assert first.value == statistics.median(values) and sum(value <= first.value for value in values) * 2 >= len(values)
    assert first.low <= first.value <= first.high


def test_one_run_has_no_spread_and_an_outlier_moves_no_median() -> None:
    one = rows.row("rate", [3.5], "tokens/s", device="cpu", ratio=2.0)
    assert (one.low, one.value, one.high, one.device, one.ratio) == (3.5, 3.5, 3.5, "cpu", 2.0)
    assert rows.row("rate", [10, 11, 12, 13, 900], "x").value == 12


def test_a_report_shows_the_same_figures_as_text_and_as_markdown() -> None:
    report = rows.report("idle", [rows.row("wake", [1.0, 2.0, 3.0], "ms", ratio=0.5), rows.row("one", [7.0], "MB")])
    text, page = rows.table(report), rows.markdown(report)
    assert report["versions"]["touchstone"] and report["machine"]["threads"] >= 1
    for shown in (text, page):
        assert "wake" in shown and "2.00 ms" in shown and "1.00 … 3.00" in shown and "0.500" in shown
    line = next(line for line in page.splitlines() if "one" in line)
    assert line == "| one | 7.00 MB |  |  |", "a figure without a spread or a reference has empty cells"


def result(*values: tuple[str, str, float, float], **more: Any) -> dict[str, Any]:
    """A benchmark result of (device, metric, value, spread) figures."""
    return {
        "at": "2026-01-01",
        "machine": {"hardware": ["A card"], "threads": 2},
        "rows": [
            {"model": "stone", "device": device, "engine": "llama.cpp", "metric": metric, "unit": "tokens/s",
             "value": value, "low": value - spread, "high": value + spread}
            for device, metric, value, spread in values
        ],
        **more,
    }  # fmt: skip


def test_a_table_has_a_row_for_each_device_and_a_dash_where_a_metric_is_missing() -> None:
    skipped = [{"device": "npu:0", "engine": None, "model": "stone", "reason": "No."}]
    figures = result(("cpu", "prefill", 50, 0), ("cpu", "decode", 12.345, 1), ("cuda:0", "decode", 250, 0))
    shown = table.markdown(figures | {"words": ["A sentence."], "skipped": skipped})
    lines = shown.splitlines()
    assert "| stone | prefill, tokens/s | decode, tokens/s |" in lines
    assert "| cpu, llama.cpp | 50 | 12.3 (11.3–13.3) |" in lines
    assert "| cuda:0, llama.cpp | – | 250 |" in lines
    assert lines[-2:] == ["- A sentence.", "- Not measured: npu:0, stone: No."]


CHANGES = [
    (100, 0, 104, 0, "within the noise"),
    (100, 30, 130, 30, "within the noise"),
    (100, 0, 120, 0, "+20%"),
    (100, 5, 50, 5, "-50%"),
    (0, 0, 10, 0, "+0%"),
]


@pytest.mark.parametrize(("old", "old_spread", "new", "new_spread", "change"), CHANGES)
def test_two_results_differ_only_beyond_the_noise(
    old: float, old_spread: float, new: float, new_spread: float, change: str
) -> None:
    before, after = result(("cpu", "decode", old, old_spread)), result(("cpu", "decode", new, new_spread))
    row = next(line for line in table.compared(before, after).splitlines() if line.startswith("| stone"))
    assert row.endswith(f"| {change} |")


def test_a_comparison_says_what_makes_it_doubtful() -> None:
    before = result(("cpu", "decode", 1, 0), ("cuda:0", "decode", 1, 0))
    after = result(("cpu", "decode", 1, 0), measured=[{"busy": True}], machine={"system": "Linux", "threads": 9})
    shown = table.compared(before, after)
    assert "In only one of the two: 1 figures." in shown and "ran during the second" in shown
    assert "A card, 2 threads against Linux, 9 threads" in shown
    with pytest.raises(Validation, match="no figure in common"):
        table.compared(result(("cpu", "decode", 1, 0)), result(("cpu", "prefill", 1, 0)))


@pytest.mark.parametrize("content", [None, [], "x", {}, {"rows": {}}, {"rows": [1]}, {"rows": [{"metric": "decode"}]}])
def test_a_file_that_is_no_result_is_refused_by_its_name(content: Any) -> None:
    with pytest.raises(Validation, match="old.json is not a benchmark result"):
        table.checked(content, "old.json")


def test_a_result_of_an_older_version_can_still_be_shown() -> None:
    old = result(("cpu", "decode", 1, 0))
    del old["at"], old["machine"]
    shown = table.markdown(table.checked(old, "old.json"))
    assert "?" in shown and "an unknown machine" in shown and "| cpu, llama.cpp | 1 |" in shown


def test_the_history_has_a_line_for_each_measurement() -> None:
    assert "Nothing was measured" in table.history([])
    plain = asdict(measured(200, spread=0, driver=None))
    lines = table.history([plain, asdict(measured(50, day=2))]).splitlines()[2:]
    assert lines[0].endswith("| stone | cuda:0, transformers | 200 tokens/s | torch 2.1 |")
    assert "(49.5–50.5)" in lines[1] and lines[1].endswith("torch 2.1, driver 550 |")


VALIDITY = [
    ({}, True),
    ({"card": "Another"}, False),
    ({"hardware_id": "pci:2"}, False),
    ({"driver": "551"}, False),
    ({"driver": None}, False),
    ({"versions": {"torch": "2.2"}}, False),
    ({"versions": {"torch": "2.1", "unlisted": "1"}}, True),
    ({"runtime": "base"}, False),
]


@pytest.mark.parametrize(("change", "holds"), VALIDITY)
def test_a_measurement_holds_only_under_its_conditions(change: dict[str, Any], holds: bool) -> None:
    assert replace(measured(100), **change).counts_for(CARD, "550") is holds


def test_a_busy_machine_counts_only_where_nothing_else_was_measured() -> None:
    history = Measurements()
    history.add([measured(100), measured(60, day=2, busy=True)])
    assert [each.speed.value for each in history.valid(lambda _: True)] == [100]
    assert [each.speed.value for each in history.valid(lambda each: each.busy)] == [60]
    history.add([measured(110, day=3)])
    assert [each.speed.value for each in history.valid(lambda _: True)] == [110] and history.revision == 2


def test_measurements_of_one_device_or_model_can_be_listed(tmp_path: Path) -> None:
    history = Measurements(tmp_path / "m.json")
    other = replace(measured(1), device="cpu", speed=replace(measured(1).speed, model="other"))
    history.add([measured(2), other])
    later = Measurements(tmp_path / "m.json")
    later.open()
    assert later.all() == [measured(2), other]
    assert later.all(device="cpu") == [other] == later.all(model="other") and later.all("cpu", "stone") == []


CASES: list[tuple[str, list[Measurement], list[str]]] = [
    ("slower after an update", [measured(100), measured(70, 2, versions={"torch": "2.2"})], ["torch"]),
    ("slower after a driver", [measured(100), measured(70, 2, driver="551")], ["driver"]),
    ("slower without a change", [measured(100), measured(70, 2)], []),
    ("a little slower", [measured(100), measured(81, 2, driver="551")], []),
    ("faster", [measured(100), measured(150, 2, driver="551")], []),
    ("another file of the model", [measured(100), measured(70, 2, driver="551", model_bytes=8)], []),
    ("another unit", [measured(100), measured(70, 2, driver="551", unit="frames/s")], []),
    ("another device", [measured(100), replace(measured(70, 2, driver="551"), device="cuda:1")], []),
    ("on a busy machine", [measured(100), measured(70, 2, driver="551", busy=True)], []),
    ("with a wide spread", [measured(100), measured(70, 2, driver="551", spread=0.5)], []),
    (
        "compared with the last one before the update",
        [measured(60), measured(100, 2), measured(70, 3, driver="551"), measured(69, 4, driver="551")],
        ["driver"],
    ),
    ("repaired since", [measured(100), measured(70, 2, driver="551"), measured(99, 3, driver="552")], []),
    ("a package is gone", [measured(100, versions={"torch": "2.1", "flash": "1"}), measured(70, 2)], ["flash"]),
]


@pytest.mark.parametrize(("history", "changed"), [each[1:] for each in CASES], ids=[each[0] for each in CASES])
def test_a_regression_needs_a_slower_figure_and_a_changed_version(
    history: list[Measurement], changed: list[str]
) -> None:
    found = regressions(history)
    assert [list(each.changed) for each in found] == ([changed] if changed else [])
    for each in found:
        assert each.before.speed.value == 100 and each.problem["code"] == "slower_after_update"
        assert all(name in (each.problem["detail"] or "") for name in changed) and each.problem["remedy"]


tokens = st.lists(st.sampled_from("abc"), max_size=6)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(tokens, tokens)
def test_agreement_is_symmetric_and_complete_only_for_equal_outputs(one: list[str], other: list[str]) -> None:
    first, second = Sample(tuple(one)), Sample(tuple(other))
    share = agreement(first, second)
    assert share == agreement(second, first)
    assert (share is None) == (not one or not other)
    if share is not None:
        assert 0 <= share <= 1 and (share == 1) == (one == other) and (share == 0) == (one[0] != other[0])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"runs": 0}, "runs"),
        ({"runs": 51}, "runs"),
        ({"runs": "3"}, "runs"),
        ({"streams": 65}, "streams"),
        ({"devices": "cpu"}, "devices"),
        ({"devices": [""]}, "devices"),
        ({"models": ["x"] * 65}, "models"),
        ({"engine": ["llama.cpp"]}, "engine"),
    ],
)
def test_a_benchmark_that_cannot_be_is_refused_by_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Validation) as caught:
        parse_benchmark_request(body)
    assert any(name.startswith(field) for name in caught.value.extra["fields"])
