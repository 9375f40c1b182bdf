"""Two simulated hours of jobs and faults leave nothing behind; `python -m tests.endurance` runs a day."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.run import Endurance


def test_hours_of_jobs_and_faults_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = Endurance(tmp_path, jobs=160, hours=2, seed=4, say=print).run()
    assert not result.broken, capsys.readouterr().out
    assert len(result.samples) == 8 and result.samples[-1].jobs == 160
    assert sum(result.faults.values()) == 4 and result.endings["done"] > 60
