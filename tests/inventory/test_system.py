"""System checks: each fault has a verdict, a remedy, and the side to apply it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.common.hardware import hardware
from backend.common.hardware.checks import Check, System
from backend.common.hardware.python_checks import python_checks
from backend.common.hardware.system import system
from tests.inventory.machines import host, sample


def examined(machine: dict[str, Any], root: Path) -> System:
    there = host(machine, root)
    return system(there, list(hardware(there))[-1])


def checks(machine: dict[str, Any], root: Path) -> dict[str, Check]:
    """Return the last check of each code."""
    return {check.code: check for check in examined(machine, root).checks}


def test_a_plain_machine_has_no_problem(tmp_path: Path) -> None:
    machine = sample("h100-vm")
    machine["files"]["etc/os-release"] = 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'
    machine["files"]["etc/vulkan/icd.d/nvidia_icd.json"] = "{}"
    found = examined(machine, tmp_path)
    assert (found.name, found.kernel, found.wsl, found.container) == ("Ubuntu 24.04.3 LTS", "6.18.44", None, None)
    assert {check.verdict for check in found.checks} == {"ok"}
    assert {"node", "libcuda", "vulkan-drivers"} == {check.code for check in found.checks}
    assert all(check.detail.endswith(".") for check in found.checks)


def test_every_problem_has_a_remedy(tmp_path: Path) -> None:
    for number, name in enumerate(("wsl2-nvidia", "wsl2-amd", "windows-hyperv", "windows-desktop", "three-vendors")):
        for check in examined(sample(name), tmp_path / str(number)).checks:
            assert check.verdict != "problem" or check.remedy, check


def test_a_linux_driver_inside_wsl_shadows_the_right_one(tmp_path: Path) -> None:
    check = checks(sample("wsl2-nvidia"), tmp_path)["libcuda-shadowed"]
    assert check.verdict == "problem" and check.side == "here"
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.525.60.13" in check.detail
    assert check.remedy and "apt-get purge" in check.remedy


def test_wsl_s_own_libcuda_is_right(tmp_path: Path) -> None:
    machine = sample("wsl2-nvidia")
    machine["commands"]["load_libcuda"] = (
        '{"path": "/usr/lib/wsl/drivers/nv.inf_amd64/libcuda.so.1.1", "version": "12.2"}'
    )
    assert checks(machine, tmp_path)["libcuda"].verdict == "ok"


def test_libcuda_that_is_missing_is_mended_where_it_comes_from(tmp_path: Path) -> None:
    said = '{"error": "libcuda.so.1: cannot open shared object file: No such file or directory"}'
    wsl = sample("wsl2-nvidia")
    wsl["commands"]["load_libcuda"] = said
    assert checks(wsl, tmp_path / "wsl")["libcuda-missing"].side == "windows"
    plain = sample("h100-vm")
    plain["commands"]["load_libcuda"] = said
    assert checks(plain, tmp_path / "plain")["libcuda-missing"].side == "here"
    inside = sample("h100-vm")
    inside["commands"] = {}
    inside["files"][".dockerenv"] = ""
    assert "--gpus all" in str(checks(inside, tmp_path / "inside")["libcuda-missing"].remedy)


def test_a_library_of_another_driver_than_the_kernel_s(tmp_path: Path) -> None:
    machine = sample("h100-vm")
    machine["commands"]["load_libcuda"] = (
        '{"path": "/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08", "version": "12.9"}'
    )
    check = checks(machine, tmp_path)["libcuda-mismatch"]
    assert "575.57.08" in check.detail and "580.159.04" in check.detail and "Restart" in str(check.remedy)


def test_a_stub_is_no_driver(tmp_path: Path) -> None:
    machine = sample("h100-vm")
    machine["commands"]["load_libcuda"] = '{"path": "/usr/local/cuda/lib64/stubs/libcuda.so.1", "version": "13.0"}'
    assert checks(machine, tmp_path)["libcuda-stub"].verdict == "problem"


def test_wsl_1_and_an_absent_dxg_are_windows_matter(tmp_path: Path) -> None:
    absent = checks(sample("wsl2-amd"), tmp_path / "2")["dxg-absent"]
    assert (absent.verdict, absent.side) == ("problem", "windows")
    first = sample("wsl2-amd")
    first["files"]["proc/sys/kernel/osrelease"] = "4.4.0-19041-Microsoft"
    found = examined(first, tmp_path / "1")
    assert found.wsl == 1
    assert next(check for check in found.checks if check.code == "wsl-1").side == "windows"


def test_a_container_in_wsl_is_started_anew(tmp_path: Path) -> None:
    machine = sample("wsl2-amd")
    machine["files"]["run/.containerenv"] = ""
    check = checks(machine, tmp_path)["dxg-absent"]
    assert check.side == "here" and "--device /dev/dxg" in str(check.remedy)


def test_dxg_without_its_libraries(tmp_path: Path) -> None:
    machine = sample("wsl2-nvidia")
    del machine["files"]["usr/lib/wsl/lib/libd3d12.so"]
    assert "lacks libd3d12.so" in checks(machine, tmp_path)["wsl-libraries"].detail


def test_rocm_in_wsl_needs_its_variable(tmp_path: Path) -> None:
    assert checks(sample("wsl2-amd"), tmp_path / "a")["rocm-dxg"].verdict == "note"
    machine = sample("wsl2-amd") | {"environment": {"HSA_ENABLE_DXG_DETECTION": "1"}}
    assert "rocm-dxg" not in checks(machine, tmp_path / "b")


def test_nodes_are_told_with_their_groups(tmp_path: Path) -> None:
    machine = sample("amd-two-cards") | {"refused": ["dev/kfd"]}
    nodes = [check for check in examined(machine, tmp_path).checks if check.layer == "permission"]
    assert [(check.code, check.verdict) for check in nodes] == [
        ("node-refused", "problem"),
        ("node", "ok"),
        ("node", "ok"),
    ]
    assert nodes[0].detail == "This user may not open /dev/kfd (its group is render)."
    assert nodes[1].detail == "/dev/dri/renderD128 may be opened (group render)."


def test_an_override_of_the_chip_and_a_kernel_without_kfd(tmp_path: Path) -> None:
    machine = sample("amd-npu") | {"environment": {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}}
    found = checks(machine, tmp_path)
    assert "gfx1152" in found["hsa-override"].detail
    assert found["kfd-absent"].verdict == "problem"


def test_vulkan_s_drivers(tmp_path: Path) -> None:
    none = checks(sample("amd-two-cards"), tmp_path / "none")
    assert none["vulkan-no-driver"].verdict == "note"
    soft = sample("amd-two-cards")
    soft["files"]["usr/share/vulkan/icd.d/lvp_icd.x86_64.json"] = "{}"
    assert "software" in checks(soft, tmp_path / "soft")["vulkan-software-only"].detail
    chosen = sample("amd-two-cards") | {"environment": {"VK_DRIVER_FILES": "/nowhere/icd.json"}}
    assert "VK_DRIVER_FILES" in checks(chosen, tmp_path / "chosen")["vulkan-driver-files"].detail


def test_fewer_threads_than_the_machine_has(tmp_path: Path) -> None:
    machine = sample("h100-vm") | {"usable_threads": 1}
    assert checks(machine, tmp_path / "few")["threads"].detail.startswith("1 of 2 threads")
    assert "threads" not in checks(machine | {"usable_threads": 2}, tmp_path / "all")


def test_windows_without_its_runtime_library(tmp_path: Path) -> None:
    found = checks(sample("windows-desktop"), tmp_path)
    assert found["vc-runtime-missing"].verdict == "problem" and "winget" in str(found["vc-runtime-missing"].remedy)
    assert found["long-paths-off"].verdict == "note"
    assert "ROCm" in found["hip-sdk"].detail


def test_windows_in_order_and_windows_too_old(tmp_path: Path) -> None:
    fine = checks(sample("windows-snapdragon"), tmp_path / "fine")
    assert set(fine) == {"vc-runtime"}
    assert "17763" in checks(sample("windows-hyperv"), tmp_path / "old")["windows-old"].detail


def test_windows_that_does_not_answer(tmp_path: Path) -> None:
    check = checks({"platform": "win32"}, tmp_path)["windows-silent"]
    assert "cannot be run" in check.detail


def test_pythons_that_cannot_have_the_packages(tmp_path: Path) -> None:
    store = "C:\\Program Files\\WindowsApps\\PythonSoftwareFoundation.Python.3.12_3.12.2032.0_x64__qbz5n2kfra8p0"
    windows, linux = host({"platform": "win32"}, tmp_path), host({}, tmp_path)
    assert [check.code for check in python_checks(windows, store, 64)] == ["python-store"]
    assert [check.code for check in python_checks(windows, "C:\\Python312", 32)] == ["python-32-bit"]
    assert [check.code for check in python_checks(linux, "/usr", 64, "musl 1.2.4")] == ["musl"]
    assert list(python_checks(linux, "/usr", 64, "glibc 2.36")) == []
    mac = host({"platform": "darwin", "commands": {"sysctl": "1\n"}}, tmp_path)
    assert [check.code for check in python_checks(mac, "/usr", 64)] == ["rosetta"]


def test_containers_by_their_marks(tmp_path: Path) -> None:
    marks: list[tuple[str, dict[str, Any]]] = [
        ("docker", {"files": {".dockerenv": ""}}),
        ("podman", {"files": {"run/.containerenv": ""}}),
        ("kubernetes", {"environment": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}}),
        ("lxc", {"environment": {"container": "lxc"}}),
        ("docker", {"files": {"proc/1/cgroup": "12:cpu:/docker/0123\n"}}),
    ]
    for number, (name, machine) in enumerate(marks):
        assert examined(machine, tmp_path / str(number)).container == name
