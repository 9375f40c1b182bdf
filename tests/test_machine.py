"""Threads and memory of the machine: affinity, CPU quota and memory limits apply; unknown values are None."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.common.system import cgroups, resources


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 processors; the tests create its cgroups."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(resources, "_affinity", lambda: set(range(8)))
    monkeypatch.setattr(resources, "_physical_cores", lambda allowed: None)
    write(tmp_path / "proc/meminfo", "MemTotal: 8000 kB\nMemAvailable: 6000 kB")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def lay(root: Path, version: int, inside: str, files: dict[str, str]) -> None:
    """Put this process into a cgroup. `inside`: the folder below the mount that contains the files."""
    write(root / "proc/self/cgroup", "0::/box/a" if version == 2 else "4:memory:/box/a\n3:cpu,cpuacct:/box/a\n0::/")
    for name, text in files.items():
        write(root / "cgroup" / ("" if version == 2 else name.split(".")[0]) / inside / name, text)


@pytest.mark.parametrize("inside", ["box/a", ""], ids=["nested", "seen from a container"])
@pytest.mark.parametrize(
    ("quota", "threads"),
    [("max 100000", 8), ("250000 100000", 2), ("150000 100000", 1), ("200000 100000", 2), ("10000 100000", 1), ("", 8)],
)
def test_the_quota_of_version_2_limits_threads(root: Path, inside: str, quota: str, threads: int) -> None:
    lay(root, 2, inside, {"cpu.max": quota})
    assert resources.usable_threads() == threads


@pytest.mark.parametrize("inside", ["box/a", ""], ids=["nested", "seen from a container"])
@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("150000", 1), ("250000", 2)])
def test_the_quota_of_version_1_limits_threads(root: Path, inside: str, quota: str, threads: int) -> None:
    lay(root, 1, inside, {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": "100000"})
    assert resources.usable_threads() == threads


def test_the_lowest_quota_of_all_levels_counts(root: Path) -> None:
    lay(root, 2, "box/a", {"cpu.max": "400000 100000"})
    lay(root, 2, "box", {"cpu.max": "150000 100000"})
    assert resources.usable_threads() == 1
    lay(root, 2, "box/a", {"cpu.max": "max 100000"})
    assert resources.usable_threads() == 1


def test_a_path_above_the_visible_root_means_that_root(root: Path) -> None:
    lay(root, 2, "", {"cpu.max": "300000 100000"})
    write(root / "proc/self/cgroup", "rubbish\n0::/../../elsewhere")
    assert resources.usable_threads() == 3


def test_physical_cores_limit_threads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_physical_cores", lambda allowed: 4)
    assert resources.usable_threads() == 4


@pytest.mark.parametrize("inside", ["box/a", ""], ids=["nested", "seen from a container"])
def test_the_memory_limit_counts_and_idle_file_cache_does_not(root: Path, inside: str) -> None:
    stat = "anon 1\ninactive_file 100000\ntotal_inactive_file 100000"
    lay(root, 2, inside, {"memory.max": "1000000", "memory.current": "400000", "memory.stat": stat})
    assert (resources.memory_bytes(), resources.memory_free_bytes()) == (1_000_000, 700_000)
    files = {"memory.limit_in_bytes": "900000", "memory.usage_in_bytes": "400000", "memory.stat": stat}
    lay(root, 1, inside, files)
    assert (resources.memory_bytes(), resources.memory_free_bytes()) == (900_000, 600_000)


def test_the_least_rest_of_all_levels_is_free(root: Path) -> None:
    lay(root, 2, "box/a", {"memory.max": "900000", "memory.current": "100000"})
    lay(root, 2, "box", {"memory.max": "2000000", "memory.current": "1900000"})
    assert (resources.memory_bytes(), resources.memory_free_bytes()) == (900_000, 100_000)


def test_no_free_memory_is_not_unknown(root: Path) -> None:
    write(root / "proc/meminfo", "MemTotal: 8000 kB\nMemAvailable: 0 kB")
    assert resources.memory_free_bytes() == 0


@pytest.mark.parametrize("text", ["max", "9223372036854771712", "", "nonsense"])
def test_no_limit_is_no_limit(root: Path, text: str) -> None:
    lay(root, 1, "box/a", {"memory.limit_in_bytes": text})
    assert resources.memory_bytes() == 8_192_000
    lay(root, 2, "box/a", {"memory.max": text})
    assert (resources.memory_bytes(), resources.memory_free_bytes()) == (8_192_000, 6_144_000)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_a_core_mask_counts() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert resources.usable_threads() == 1
    finally:
        os.sched_setaffinity(0, mask)
