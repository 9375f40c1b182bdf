"""The inventory of real machines: which hardware, of which kind, and why it is unusable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inventory.machines import MEMORY, NAMES, found, sample, steps

KINDS = {
    "amd-npu": {"pci:0000:c4:00.0": "integrated", "pci:0000:c5:00.1": "npu"},
    "amd-two-cards": {"pci:0000:03:00.0": "gpu", "pci:0000:0f:00.0": "integrated"},
    "apple-m1": {"platform:apple-gpu": "integrated", "platform:apple-ane": "npu"},
    "h100-vm": {"pci:0000:00:06.0": "gpu"},
    "hyperv-vm": {"platform:5620e0c7-8062-4dce-aeb7-520c7ef76171": "emulated"},
    "intel-npu": {"pci:0000:00:02.0": "integrated", "pci:0000:00:0b.0": "npu"},
    "laptop-hybrid": {"pci:0000:00:02.0": "integrated", "pci:0000:01:00.0": "gpu"},
    "snapdragon-linux": {"platform:ae01000.display-controller": "integrated", "platform:fastrpc-cdsp": "npu"},
    "three-vendors": {"pci:0000:00:02.0": "integrated", "pci:0000:01:00.0": "gpu", "pci:0000:04:00.0": "gpu"},
    "two-of-one-name": {"pci:0000:09:00.0": "gpu", "pci:0000:86:00.0": "gpu"},
    "virtio-vm": {
        "pci:0000:00:01.0": "emulated",
        "pci:0000:00:02.0": "emulated",
        "pci:0000:00:0f.0": "emulated",
        "pci:0000:02:00.0": "emulated",
        "pci:0000:03:00.0": "gpu",
        "pci:0000:04:00.0": "gpu",
        "pci:0000:04:00.1": "gpu",
    },
    "windows-desktop": {
        "pci:0000:01:00.0": "gpu",
        "pci:0000:03:00.0": "gpu",
        "pci:0000:05:00.0": "gpu",
        "pci:0000:0f:00.0": "integrated",
        "platform:root\\basicrender": "emulated",
        "platform:root\\display": "emulated",
        "platform:usb\\vid_17e9&pid_4301": "emulated",
    },
    "windows-hyperv": {"platform:vmbus\\{da0a7802-e377-4aac-8e77-0558eb1073f8}": "emulated"},
    "windows-rdp": {"pci:0000:00:02.0": "integrated", "platform:swd\\remotedisplayenum": "emulated"},
    "windows-snapdragon": {
        "luid:0x00000000_0x000101d0": "integrated",
        "platform:acpi\\ven_qcom&dev_0ff0&subsys_crd08480&rev_0056": "npu",
    },
    "wsl2-amd": {"pci:0000:03:00.0": "gpu", "pci:0000:c3:00.1": "npu"},
    "wsl2-nvidia": {"pci:0000:01:00.0": "gpu"},
}


def test_every_sample_is_expected_and_names_its_origin() -> None:
    assert sorted(KINDS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_there_and_of_which_kind(name: str, tmp_path: Path) -> None:
    hardware = steps(sample(name), tmp_path)[-1]
    assert {item.id: item.kind for item in hardware} == {"cpu:0": "cpu", **KINDS[name]}
    assert hardware[0].id == "cpu:0" and hardware[0].memory_bytes == MEMORY
    assert all(item.name.strip() for item in hardware)
    assert all(item.reason and item.remedy for item in hardware if item.kind == "emulated")
    assert all((item.reason is None) == (item.remedy is None) for item in hardware)


@pytest.mark.parametrize("name", NAMES)
def test_ids_stay_from_step_to_step(name: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    for step in steps(sample(name), tmp_path):
        ids = {item.id for item in step}
        assert seen <= ids
        seen = ids


def test_two_amd_cards_are_told_apart_with_memory_target_and_uuid(tmp_path: Path) -> None:
    hardware = found(sample("amd-two-cards"), tmp_path)
    card, part = hardware["pci:0000:03:00.0"], hardware["pci:0000:0f:00.0"]
    assert (card.name, card.architecture, card.memory_bytes) == ("AMD Radeon RX 6600", "gfx1032", 8573157376)
    assert (part.architecture, part.memory_bytes, part.memory_shared_bytes) == ("gfx1036", 536870912, 16377958400)
    assert card.uuid == "GPU-a1ffc9d1799c317f" and part.uuid is None
    assert card.driver == "amdgpu 6.8.0-45-generic"
    assert card.reason is None and card.render_node == "/dev/dri/renderD128"


def test_kfd_s_pool_of_a_part_of_the_processor_is_not_its_own_memory(tmp_path: Path) -> None:
    machine = sample("amd-two-cards")
    machine["pci"] = [" ".join(w for w in line.split() if "mem_info" not in w) for line in machine["pci"]]
    hardware = found(machine, tmp_path)
    assert hardware["pci:0000:03:00.0"].memory_bytes == 8573157376
    assert hardware["pci:0000:0f:00.0"].memory_bytes is None


def test_without_kfd_the_family_tells_what_a_card_computes_like(tmp_path: Path) -> None:
    machine = sample("amd-two-cards")
    machine["files"] = {"proc/sys/kernel/osrelease": "6.8.0"}
    hardware = found(machine, tmp_path)
    assert [hardware[id_].architecture for id_ in ("pci:0000:03:00.0", "pci:0000:0f:00.0")] == ["gfx1032", "gfx1036"]


def test_an_unknown_amd_chip_beside_parts_of_the_processor_is_a_part_of_it(tmp_path: Path) -> None:
    neighbours = ["0000:c1:00.0 030000 1002:fff0 00 driver=amdgpu", "0000:c1:00.2 108000 1022:17e0 00"]
    alone = ["0000:03:00.0 030000 1002:fff1 00 driver=amdgpu", "0000:03:00.1 040300 1002:ab28 00"]
    hardware = found({"pci": neighbours + alone}, tmp_path)
    assert {item.id: item.kind for item in hardware.values() if item.kind != "cpu"} == {
        "pci:0000:03:00.0": "gpu",
        "pci:0000:c1:00.0": "integrated",
    }
    assert hardware["pci:0000:c1:00.0"].name == "AMD 1002:fff0"


def test_kfd_tells_what_chips_of_unknown_families_compute_like(tmp_path: Path) -> None:
    """location_id has bus, device and function in 8, 5 and 3 bits; the last number of a target is hexadecimal."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {
        f"{nodes}/{number}/properties": f"simd_count 80\ngfx_target_version {version}\nlocation_id {place}\ndomain 0\n"
        for number, version, place in ((1, 110501, 0xC1 << 8), (2, 90010, 6 << 3 | 1))
    }
    lines = ["0000:c1:00.0 030000 1002:fff0 00 driver=amdgpu", "0000:00:06.1 030000 1002:fff1 00 driver=amdgpu"]
    hardware = found({"files": files, "pci": lines}, tmp_path)
    part, card = hardware["pci:0000:c1:00.0"], hardware["pci:0000:00:06.1"]
    assert (part.kind, part.architecture) == ("integrated", "gfx1151")
    assert card.architecture == "gfx90a"


def test_the_tiles_of_an_intel_card_add_up(tmp_path: Path) -> None:
    """xe has a file per tile, as in igt-gpu-tools' test of physical_vram_size_bytes."""
    path = "sys/bus/pci/devices/0000:4d:00.0"
    files = {f"{path}/tile{n}/physical_vram_size_bytes": "0x1000000000\n" for n in range(2)}
    card = found({"pci": ["0000:4d:00.0 038000 8086:0bd5 2f driver=xe"], "files": files}, tmp_path)["pci:0000:4d:00.0"]
    assert (card.kind, card.memory_bytes, card.name) == ("gpu", 2 << 36, "Intel Data Center GPU Max 1550")


def test_other_makers_chips_on_the_first_bus_are_parts_of_the_processor(tmp_path: Path) -> None:
    lines = ["0000:00:01.0 030000 1d17:3a03 01 driver=x", "0000:03:00.0 030000 1ed5:0222 01 driver=mtgpu"]
    hardware = found({"pci": lines}, tmp_path)
    assert [item.kind for item in hardware.values()] == ["cpu", "integrated", "gpu"]
    assert hardware["pci:0000:03:00.0"].name == "Moore Threads Technology Co.,Ltd MTT S3000"


def test_datacentre_cards_that_call_themselves_accelerators_are_gpus(tmp_path: Path) -> None:
    lines = ["0000:11:00.0 120000 1002:74a1 00 driver=amdgpu", "0000:12:00.0 120000 1da3:1020 01 driver=habanalabs"]
    hardware = found({"pci": lines}, tmp_path)
    assert (hardware["pci:0000:11:00.0"].kind, hardware["pci:0000:11:00.0"].name) == ("gpu", "AMD Instinct MI300X")
    assert hardware["pci:0000:11:00.0"].architecture == "gfx942"
    assert hardware["pci:0000:12:00.0"].kind == "npu"


def test_nvidia_s_driver_names_its_cards(tmp_path: Path) -> None:
    first, last = steps(sample("h100-vm"), tmp_path)
    by_files, card = (next(item for item in step if item.kind == "gpu") for step in (first, last))
    assert (by_files.name, by_files.memory_bytes) == ("NVIDIA H100 80GB HBM3", None)
    assert by_files.uuid == card.uuid == "GPU-00000000-1111-2222-3333-444444444444"
    assert (card.memory_bytes, card.architecture) == (81559 << 20, "sm_90")
    assert card.driver == "nvidia 580.159.04"


def test_a_sleeping_card_has_no_uuid_until_the_tool_woke_it(tmp_path: Path) -> None:
    first, last = steps(sample("laptop-hybrid"), tmp_path)
    assert [next(item.uuid for item in step if item.vendor == "NVIDIA") for step in (first, last)] == [
        None,
        "GPU-11111111-2222-3333-4444-555555555555",
    ]


def test_a_tool_that_fails_is_told_with_the_card(tmp_path: Path) -> None:
    machine = sample("h100-vm")
    machine["commands"] = {}
    card = found(machine, tmp_path)["pci:0000:00:06.0"]
    assert card.reason and card.reason.startswith("NVIDIA's driver does not respond: /usr/bin/nvidia-smi")
    assert card.name == "NVIDIA H100 80GB HBM3" and card.memory_bytes is None


def test_a_container_without_the_card_s_node_says_how_to_start_it(tmp_path: Path) -> None:
    machine = sample("h100-vm")
    del machine["files"]["dev/nvidia0"], machine["files"]["usr/bin/nvidia-smi"]
    machine["files"][".dockerenv"] = ""
    card = found(machine, tmp_path)["pci:0000:00:06.0"]
    assert card.reason == "/dev/nvidia0 is missing: this docker container was started without the card."
    assert card.remedy and "--gpus all" in card.remedy


def test_what_stands_in_the_way_names_driver_or_group(tmp_path: Path) -> None:
    hardware = found(sample("three-vendors"), tmp_path)
    refused = hardware["pci:0000:04:00.0"]
    assert refused.reason == "This user may not open /dev/dri/renderD130 (its group is render)."
    assert refused.remedy == "`sudo usermod -aG render $USER`, then log out and in again."
    assert refused.memory_bytes == 0x1FC000000
    assert "nouveau" in str(hardware["pci:0000:01:00.0"].reason)


def test_the_compute_node_counts_as_well(tmp_path: Path) -> None:
    machine = sample("amd-two-cards") | {"refused": ["dev/kfd"]}
    card = found(machine, tmp_path)["pci:0000:03:00.0"]
    assert card.reason == "This user may not open /dev/kfd (its group is render)."


def test_a_node_that_no_group_has_is_given_to_one(tmp_path: Path) -> None:
    npu = found(sample("amd-npu"), tmp_path)["pci:0000:c5:00.1"]
    assert npu.reason == "This user may not open /dev/accel/accel0 (its group is root)."
    assert npu.remedy and "chgrp render /dev/accel/accel0" in npu.remedy


def test_other_owners_and_missing_drivers_are_reasons(tmp_path: Path) -> None:
    hardware = found(sample("virtio-vm"), tmp_path)
    reasons = {id_: str(item.reason) for id_, item in hardware.items()}
    assert "vfio-pci" in reasons["pci:0000:03:00.0"]
    assert "No driver" in reasons["pci:0000:04:00.0"]
    assert "virtual function of the card 0000:04:00.0" in reasons["pci:0000:04:00.1"]
    assert "management controller" in reasons["pci:0000:02:00.0"]


def test_windows_tells_dedicated_and_shared_memory_apart(tmp_path: Path) -> None:
    hardware = found(sample("windows-desktop"), tmp_path)
    card, part = hardware["pci:0000:03:00.0"], hardware["pci:0000:0f:00.0"]
    assert (card.memory_bytes, card.memory_shared_bytes) == (25669402624, 33980903424)
    assert (part.memory_bytes, part.memory_shared_bytes) == (522133504, 33980903424)
    assert (card.driver, card.driver_date, card.architecture) == ("32.0.11029.1008", "2024-08-28", "gfx1100")
    assert card.luid == "0x00000000_0x0000d431" and card.reason is None


def test_windows_cards_without_their_driver_keep_their_names(tmp_path: Path) -> None:
    hardware = found(sample("windows-desktop"), tmp_path)
    assert hardware["pci:0000:05:00.0"].name == "Intel Arc A770"
    assert "no driver is installed" in str(hardware["pci:0000:05:00.0"].reason)
    assert hardware["pci:0000:01:00.0"].name == "NVIDIA GeForce RTX 4090"
    assert "basic display driver" in str(hardware["pci:0000:01:00.0"].reason)


def test_nvidia_s_tool_adds_to_what_windows_tells(tmp_path: Path) -> None:
    machine = sample("windows-desktop")
    uuid = "GPU-33333333-4444-5555-6666-777777777777"
    machine["commands"] = {"nvidia-smi": f"00000000:01:00.0, {uuid}, NVIDIA GeForce RTX 4090, 24564, 576.52, 8.9\n"}
    card = found(machine, tmp_path)["pci:0000:01:00.0"]
    assert (card.uuid, card.memory_bytes, card.architecture) == (uuid, 24564 << 20, "sm_89")


def test_silent_windows_leaves_the_processor(tmp_path: Path) -> None:
    assert [item.id for item in steps({"platform": "win32"}, tmp_path)[-1]] == ["cpu:0"]


def test_wsl_asks_windows_and_says_who_must_act(tmp_path: Path) -> None:
    hardware = found(sample("wsl2-amd"), tmp_path)
    card, npu = hardware["pci:0000:03:00.0"], hardware["pci:0000:c3:00.1"]
    assert card.reason == "/dev/dxg is missing: Windows shares no GPU with this WSL."
    assert card.remedy and card.remedy.startswith("On Windows:")
    assert "launch.cmd" in str(npu.remedy)


def test_wsl_with_its_node_reaches_the_card(tmp_path: Path) -> None:
    machine = sample("wsl2-amd")
    machine["files"]["dev/dxg"] = ""
    card = found(machine, tmp_path)["pci:0000:03:00.0"]
    assert (card.reason, card.render_node, card.architecture) == (None, "/dev/dxg", "gfx1101")


def test_wsl_without_any_name_shows_that_something_is_there(tmp_path: Path) -> None:
    machine = sample("wsl2-nvidia") | {"commands": {}}
    card = found(machine, tmp_path)["pci:fe50:00:00.0"]
    assert (card.kind, card.name) == ("gpu", "A card of the Windows host")


def test_wsl_1_has_no_way_to_a_card(tmp_path: Path) -> None:
    machine = sample("wsl2-amd")
    machine["files"]["proc/sys/kernel/osrelease"] = "4.4.0-19041-Microsoft"
    assert "WSL 1" in str(found(machine, tmp_path)["pci:0000:03:00.0"].reason)


def test_an_apple_machine_shares_its_memory(tmp_path: Path) -> None:
    hardware = found(sample("apple-m1"), tmp_path)
    gpu, cpu = hardware["platform:apple-gpu"], hardware["cpu:0"]
    assert (gpu.name, gpu.memory_bytes, gpu.memory_shared_bytes) == ("Apple M1", None, 8 << 30)
    assert (cpu.name, cpu.cores, cpu.instructions) == ("Apple M1", 8, ["FP16", "DotProd"])


def test_an_intel_mac_has_a_card_of_its_own(tmp_path: Path) -> None:
    """Output of system_profiler on an Intel Mac, from the tests of public parsers."""
    card_entry = {
        "sppci_model": "AMD Radeon Pro 5500M",
        "sppci_bus": "spdisplays_pcie_device",
        "spdisplays_vram": "8 GB",
        "spdisplays_device-id": "0x7340",
        "spdisplays_vendor-id": "0x1002",
    }
    part_entry = {
        "sppci_model": "Intel UHD Graphics 630",
        "sppci_bus": "spdisplays_builtin",
        "spdisplays_vram_shared": "1536 MB",
    }
    entry = json.dumps({"SPDisplaysDataType": [card_entry, part_entry]})
    machine = {"platform": "darwin", "commands": {"system_profiler": entry}}
    hardware = found(machine, tmp_path)
    card, part = hardware["platform:apple-gpu"], hardware["platform:apple-gpu-1"]
    assert (card.kind, card.vendor, card.memory_bytes, card.pci_ids) == ("gpu", "AMD", 8 << 30, "1002:7340")
    assert (part.kind, part.vendor, part.memory_shared_bytes) == ("integrated", "Intel", 1536 << 20)


def test_a_processor_that_tells_no_model_has_its_maker_and_its_board(tmp_path: Path) -> None:
    cpu = found(sample("snapdragon-linux"), tmp_path)["cpu:0"]
    assert cpu.name == "Qualcomm processor (Lenovo ThinkPad T14s Gen 6)"
    assert cpu.instructions == ["NEON", "FP16", "DotProd", "I8MM", "BF16"]


def test_cores_are_counted_once_for_all_their_threads(tmp_path: Path) -> None:
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": str(value)
        for cpu in range(8)
        for name, value in (("physical_package_id", cpu // 4), ("core_id", cpu % 2))
    }
    assert found({"files": files}, tmp_path)["cpu:0"].cores == 4


def test_the_second_screen_of_an_old_card_is_no_card(tmp_path: Path) -> None:
    """`00:02.1 Display controller [0380]: Intel Corporation Mobile GM965 [8086:2a03]`, as lspci shows such laptops."""
    lines = ["0000:00:02.0 030000 8086:2a02 0c driver=i915 render=renderD128", "0000:00:02.1 038000 8086:2a03 0c"]
    assert list(found({"pci": lines}, tmp_path)) == ["cpu:0", "pci:0000:00:02.0"]


def test_a_dsp_s_group_is_named(tmp_path: Path) -> None:
    npu = found(sample("snapdragon-linux"), tmp_path)["platform:fastrpc-cdsp"]
    assert npu.reason == "This user may not open /dev/fastrpc-cdsp (its group is fastrpc)."


def test_a_thousand_cards_and_none(tmp_path: Path) -> None:
    lines = [f"{n // 256:04x}:{n % 256:02x}:00.0 030000 10de:2684 a1 driver=nvidia" for n in range(1, 1001)]
    many = found({"pci": lines}, tmp_path / "many")
    assert len(many) == 1001 and len({item.name for item in many.values() if item.kind == "gpu"}) == 1
    assert list(found({}, tmp_path / "none")) == ["cpu:0"]


def test_two_adapters_of_one_name_on_windows_stay_two(tmp_path: Path) -> None:
    machine = sample("windows-desktop")
    twin = dict(machine["windows"]["devices"][6], instance="ROOT\\DISPLAY\\0001")
    machine["windows"]["devices"].append(twin)
    hardware = found(machine, tmp_path)
    assert {"platform:root\\display", "platform:root\\display#2"} <= set(hardware)
