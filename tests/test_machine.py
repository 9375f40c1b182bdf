"""What the machine offers: affinity, quota and memory limits are respected, and what is unknown stays unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend import machine


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_affinity", lambda: set(range(8)))
    monkeypatch.setattr(machine, "_physical_cores", lambda allowed: None)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory").mkdir()
    return tmp_path


@pytest.mark.parametrize(("quota", "threads"), [("max 100000", 8), ("250000 100000", 3), ("10000 100000", 1), ("", 8)])
def test_the_quota_of_version_2_limits_threads(cgroup: Path, quota: str, threads: int) -> None:
    (cgroup / "cpu.max").write_text(quota)
    assert machine.usable_threads() == threads


@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("150000", 2)])
def test_the_quota_of_version_1_limits_threads(cgroup: Path, quota: str, threads: int) -> None:
    (cgroup / "cpu/cpu.cfs_quota_us").write_text(quota)
    (cgroup / "cpu/cpu.cfs_period_us").write_text("100000")
    assert machine.usable_threads() == threads


def test_physical_cores_limit_threads(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_physical_cores", lambda allowed: 4)
    assert machine.usable_threads() == 4


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_memory_limit_counts(cgroup: Path, name: str) -> None:
    (cgroup / name).write_text("1000000")
    used = "memory.current" if name == "memory.max" else "memory/memory.usage_in_bytes"
    (cgroup / used).write_text("400000")
    assert machine.memory_bytes() == 1_000_000 and machine.memory_free_bytes() == 600_000


@pytest.mark.parametrize("text", ["max", "9223372036854771712", "", "nonsense"])
def test_no_limit_is_no_limit(cgroup: Path, text: str) -> None:
    (cgroup / "memory/memory.limit_in_bytes").write_text(text)
    (cgroup / "memory.max").write_text(text)
    whole = machine._meminfo("MemTotal")
    assert machine.memory_bytes() == whole


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_a_core_mask_counts() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert machine.usable_threads() == 1
    finally:
        os.sched_setaffinity(0, mask)
