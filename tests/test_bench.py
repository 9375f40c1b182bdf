"""The benchmarks run and print their figures; the stub engine uses the real child and protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.cli.bench import plot, spread, text
from backend.cli.bench.harness import stub_load
from backend.cli.main import main
from backend.common.errors import Validation
from backend.manager.benchmarks import rows

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"


def test_the_service_fed_by_a_stand_in_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_load, "SECONDS", 1.0)
    found = {row.metric: row for row in stub_load.streams(TINY, 3, 90)}
    assert 0 < found["3 streams of a stand-in, tokens that arrived"].value < 200
    assert found["3 streams of a stand-in, events that carried them"].value > 0
    assert found["3 streams of a stand-in, health, p99"].value > 0
    assert found["3 streams of a stand-in, server memory"].value > 20


def test_a_report_is_a_table_for_terminals_and_for_pages() -> None:
    found = rows.report(
        "text", [rows.row("decode", [1.0, 2.0, 4.0], "tokens/s", ratio=0.5), rows.row("load", [1], "s")]
    )
    assert "decode" in rows.table(found) and "0.500 of the reference" in rows.table(found)
    assert "| decode | 2.00 tokens/s | 1.00 … 4.00 | 0.500 |" in rows.markdown(found)
    assert "| load | 1.00 s |  |  |" in rows.markdown(found)


def test_each_side_of_each_engine_is_as_often_the_first() -> None:
    rounds = [text.rotate(["a", "b", "c"], number) for number in range(6)]
    assert all(sorted(order) == sorted(rounds[0]) for order in rounds)
    assert len({order[0] for order in rounds}) == 6
    for engine in "abc":
        firsts = [next(side for name, side in order if name == engine) for order in rounds]
        assert firsts.count("bare") == firsts.count("service") == 3


def test_a_picture_without_matplotlib_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("backend.cli.bench.plot.importlib.import_module", missing)
    with pytest.raises(Validation, match="matplotlib"):
        plot.draw({"rows": []}, tmp_path / "picture.png")


def test_two_files_are_compared_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = {"device": "cpu", "engine": "llama.cpp", "model": "stone"}
    for name, value in (("before", 100.0), ("after", 50.0)):
        row = {**where, "metric": "decode", "value": value, "unit": "tokens/s", "low": value, "high": value}
        (tmp_path / name).write_text(json.dumps({"at": "2026", "rows": [row]}))
    assert main(["bench", "devices", "--compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    assert "| 100 | 50 | -50% |" in capsys.readouterr().out


def test_more_devices_are_measured_beside_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = {"form": "march", "bars": 1, "backing": "none", "formats": ["abc"]}
    for name, value in {"JOBS_EACH": 1, "VARIATIONS_EACH": 1, "TUNE": tune}.items():
        monkeypatch.setattr(spread, name, value)
    assert main(["bench", "spread", "--device", "cpu", "--device", "cpu", "--runs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    figures = {row["metric"]: row for row in found["rows"]}
    assert list(figures) == ["jobs on cpu", "jobs on cpu, cpu", "variations on cpu", "variations on cpu, cpu"]
    assert figures["jobs on cpu"]["ratio"] is None
    ratio = figures["jobs on cpu, cpu"]["value"] / figures["jobs on cpu"]["value"]
    assert figures["jobs on cpu, cpu"]["ratio"] == pytest.approx(ratio) and ratio > 0


@pytest.mark.parametrize(
    ("flags", "word"),
    [([], "Two or more devices"), (["--device", "cpu", "--device", "cpu", *["--model", "a"] * 2], "Only one model")],
)
def test_what_cannot_be_shared_is_not_measured(flags: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["bench", "spread", *flags])
    assert ending.value.code == 2
    assert word in capsys.readouterr().err
