"""Facts of the operating system: cgroups, out-of-memory kills, missing libraries, energy, processes and clocks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.system import cgroups, oom_kills, power, resources
from backend.common.system.shared_libraries import (
    command_for,
    distribution_ids,
    missing_glibc,
    missing_library,
    package_providing,
)
from backend.common.system.suspend import SLEEP_S, ClockJumpDetector, SuspendDetector, steady_clock, total_clock


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    return tmp_path


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def memory_file(pid: int | str = "self") -> Path | None:
    return cgroups.file(pid, "memory.max", "memory", "memory.limit_in_bytes")


def test_the_file_of_the_process_comes_before_the_file_of_the_mount(root: Path) -> None:
    put(root / "proc/7/cgroup", "0::/user.slice/app.scope\n")
    mount = put(root / "cgroup/memory.max", "1")
    assert memory_file(7) == mount
    own = put(root / "cgroup/user.slice/app.scope/memory.max", "2")
    assert memory_file(7) == own


def test_a_controller_of_version_1_is_found_among_those_it_is_mounted_with(root: Path) -> None:
    put(root / "proc/self/cgroup", "9:cpu,cpuacct:/box\n8:memory:/box\n1:name=systemd:/box\n")
    limit = put(root / "cgroup/memory/box/memory.limit_in_bytes", "5")
    quota = put(root / "cgroup/cpu/box/cpu.cfs_quota_us", "5")
    assert memory_file() == limit
    assert cgroups.file("self", "cpu.max", "cpu", "cpu.cfs_quota_us") == quota


def test_both_versions_at_once_are_read_from_the_one_that_has_the_file(root: Path) -> None:
    put(root / "proc/self/cgroup", "4:memory:/box\n0::/box\n")
    (root / "cgroup/box").mkdir(parents=True)
    limit = put(root / "cgroup/memory/box/memory.limit_in_bytes", "5")
    assert memory_file() == limit


def test_a_colon_in_the_path_of_a_cgroup_is_part_of_it(root: Path) -> None:
    put(root / "proc/self/cgroup", "0::/kubepods/cri:abc:def\n")
    limit = put(root / "cgroup/kubepods/cri:abc:def/memory.max", "5")
    assert memory_file() == limit


def test_a_process_that_is_gone_has_no_cgroup(root: Path) -> None:
    put(root / "cgroup/memory.max", "1")
    assert memory_file(4_000_000) is None
    assert cgroups.read(None) == "" and cgroups.read(root) == ""


def watched(root: Path, events: str, vmstat: str) -> oom_kills.OomWatch:
    put(root / "proc/7/cgroup", "0::/box\n")
    put(root / "cgroup/box/memory.events", events)
    put(root / "proc/vmstat", vmstat)
    return oom_kills.watch(7)


def test_a_kill_in_the_cgroup_is_its_limit_and_not_the_machine_s_memory(root: Path) -> None:
    watch = watched(root, "low 0\noom 3\noom_kill 1\n", "pgpgin 9\noom_kill 4\n")
    assert watch.cause() is None
    watched(root, "low 0\noom 4\noom_kill 2\n", "pgpgin 9\noom_kill 5\n")
    assert "cgroup" in str(watch.cause())


def test_a_kill_elsewhere_on_the_machine_is_the_machine_s_memory(root: Path) -> None:
    watch = watched(root, "oom_kill 0\n", "oom_kill 0\n")
    watched(root, "oom_kill 0\n", "oom_kill 1\n")
    assert watch.cause() == "the machine's memory"


@pytest.mark.parametrize("events", ["", "oom_kill\n", "oom_kill many\n", "oom_kill_disable 0\nunder_oom 0\n"])
def test_a_kernel_without_the_count_blames_nothing(root: Path, events: str) -> None:
    watch = watched(root, events, "")
    watched(root, "oom_kill 5\n", "oom_kill 5\n")
    assert watch.cause() is None, "a count that was unknown at the start proves nothing"


def test_a_cgroup_that_ended_with_its_process_blames_nothing(root: Path) -> None:
    watch = watched(root, "oom_kill 0\n", "oom_kill 0\n")
    (root / "cgroup/box/memory.events").unlink()
    assert watch.cause() is None


@pytest.mark.parametrize("name", ["python3", "a b) S 1 (", "ünïcödé".encode()[:-1], b"\xff\xff)"])
def test_the_processor_time_of_a_program_of_any_name(root: Path, name: str | bytes) -> None:
    raw = name.encode() if isinstance(name, str) else name
    ticks = os.sysconf("SC_CLK_TCK")
    tail = f") R 1 1 1 0 -1 0 0 0 0 0 {2 * ticks} {ticks} 0 0 20 0 1 0 5 0 0"
    put(root / "proc/7/stat", b"7 (" + raw + tail.encode())
    assert resources.process_cpu_s(7) == 3


def test_this_process_has_used_a_processor_and_a_dead_one_is_unknown() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert resources.process_cpu_s(child.pid) is None
    if sys.platform == "linux":
        assert (resources.process_cpu_s(os.getpid()) or 0) > 0


ERRORS = {
    "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory": "libgomp.so.1",
    "OSError: libcudnn_ops_infer.so.8: cannot open shared object file: No such file": "libcudnn_ops_infer.so.8",
    "Error loading shared library libstdc++.so.6: No such file or directory (needed by /x.so)": "libstdc++.so.6",
    "dlopen(/x/libggml.dylib, 0x0006): Library not loaded: @rpath/libomp.dylib": "libomp.dylib",
    "FileNotFoundError: Could not find module 'C:\\ts\\nvcuda.dll' (or one of its dependencies)": "nvcuda.dll",
    "OSError: libtorch_cuda.so: cannot open shared object file": "libtorch_cuda.so",
    "libcublas.so.12.4: cannot open shared object file": "libcublas.so.12.4",
    "undefined symbol: cuModuleGetFunction": None,
    "libgomp.so.1: version `GOMP_5.0' not found": None,
    "": None,
}


@pytest.mark.parametrize("text", ERRORS)
def test_the_missing_library_is_named_as_the_loader_names_it(text: str) -> None:
    assert missing_library(text) == ERRORS[text]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.35' not found (required by x.so)", "2.35"),
        ("/lib64/libm.so.6: version 'GLIBC_2.29' not found", "2.29"),
        ("version `GLIBCXX_3.4.32' not found", None),
        ("version `CXXABI_1.3.15' not found", None),
    ],
)
def test_an_old_glibc_is_told_from_an_old_c_plus_plus_library(text: str, version: str | None) -> None:
    assert missing_glibc(text) == version


@pytest.mark.parametrize(
    ("ids", "tool"),
    [
        (("ubuntu", "debian"), "apt-get"),
        (("linuxmint", "ubuntu", "debian"), "apt-get"),
        (("rocky", "rhel", "centos", "fedora"), "dnf"),
        (("opensuse-tumbleweed", "opensuse", "suse"), "zypper"),
        (("opensuse-leap",), "zypper"),
        (("manjaro", "arch"), "pacman"),
        (("alpine",), "apk"),
    ],
)
def test_a_family_of_distributions_has_its_own_command(ids: tuple[str, ...], tool: str) -> None:
    command = command_for("libgomp.so.1", ids)
    assert command is not None and tool in command.split() and "gomp" in command or "gcc-libs" in str(command)


def test_no_command_is_guessed() -> None:
    assert command_for("libgomp.so.1", ("nixos",)) is None
    assert command_for("libgomp.so.1", ()) is None
    assert command_for("libnothing.so.1", ("debian",)) is None
    assert command_for("libze_loader.so.1", ("alpine",)) is None, "it is not packaged there"


@pytest.mark.parametrize(
    ("library", "provider"),
    [
        ("libcuda.so.1", "NVIDIA"),
        ("libnvidia-ml.so.1", "NVIDIA"),
        ("libamdhip64.so.6", "ROCm"),
        ("VCRUNTIME140_1.dll", "Visual C++"),
        ("libd3d12.so", "Windows"),
        ("libcublas.so.12", None),
    ],
)
def test_libraries_of_drivers_come_from_their_makers(library: str, provider: str | None) -> None:
    found = package_providing(library)
    assert found is None if provider is None else provider in str(found)


def test_a_system_without_os_release_has_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise OSError("no such file")

    monkeypatch.setattr("platform.freedesktop_os_release", missing)
    assert distribution_ids.__wrapped__() == ()
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "mint", "ID_LIKE": "ubuntu debian"})
    monkeypatch.setattr(sys, "platform", "linux")
    assert distribution_ids.__wrapped__() == ("mint", "ubuntu", "debian")
    monkeypatch.setattr(sys, "platform", "win32")
    assert distribution_ids.__wrapped__() == ()


def zone(root: Path, folder: str, name: str, joules: str) -> None:
    put(root / folder / "name", name + "\n")
    put(root / folder / "energy_uj", joules and joules + "000000\n")


def test_a_package_with_two_interfaces_is_counted_once(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", "5")
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", "5")
    zone(tmp_path, "intel-rapl:0:0", "core", "3")
    assert power.processor_j(tmp_path) == 5


def test_the_platform_s_counter_contains_the_processor_s(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", "5")
    zone(tmp_path, "intel-rapl:1", "psys", "40")
    assert power.processor_j(tmp_path) == 5


def test_two_sockets_add_up_and_unreadable_counters_are_left_out(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", "5")
    zone(tmp_path, "intel-rapl:1", "package-1", "7")
    zone(tmp_path, "intel-rapl:2", "package-2", "")
    assert power.processor_j(tmp_path) == 12


class Clock:
    """A clock that the test sets."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_a_suspend_is_reported_once() -> None:
    awake, total = Clock(100), Clock(5000)
    detector = SuspendDetector(awake, total)
    awake.now, total.now = 110, 5010 + 3600
    assert detector.slept_s() == 3600
    awake.now, total.now = 111, total.now + 1
    assert detector.slept_s() == 0


def test_short_gaps_between_the_clocks_never_add_up_to_a_suspend() -> None:
    awake, total = Clock(0), Clock(0)
    detector = SuspendDetector(awake, total)
    for _ in range(100):
        awake.now, total.now = awake.now + 1, total.now + SLEEP_S
        assert detector.slept_s() == 0


@settings(max_examples=50, derandomize=True, database=None, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-(10**6), 10**6)), min_size=1, max_size=20))
def test_jumps_of_the_wall_clock_add_up_whatever_the_time_between_them(steps: list[tuple[int, int]]) -> None:
    wall, steady = Clock(1.75e9), Clock(50)
    detector = ClockJumpDetector(wall, steady)
    for passed, jump in steps:
        steady.now += passed
        wall.now += passed + jump
    assert detector.jumped_s() == sum(jump for _, jump in steps)


def test_systems_without_a_boot_clock_use_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("time.CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr("time.time", lambda: 7.0)
    monkeypatch.setattr("time.monotonic", lambda: 3.0)
    monkeypatch.setattr(sys, "platform", "win32")
    assert (total_clock(), steady_clock()) == (7.0, 3.0)
