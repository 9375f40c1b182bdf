"""Machines whose files and tools answer wrongly, partly or not at all: which hardware is listed, with which facts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.common.hardware import hardware
from backend.common.hardware.host import Answer, Host
from backend.common.hardware.linux_checks import nvidia_checks
from backend.common.hardware.wsl import wsl
from backend.common.system import cgroups, resources
from backend.common.types import Hardware
from tests.faulty_stacks.stack import Category, Stack
from tests.inventory.machines import found, host, sample

CARD, SECOND = "pci:0000:01:00.0", "pci:0000:02:00.0"
UUID = "GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab"
GOOD = f"00000000:01:00.0, {UUID}, NVIDIA GeForce RTX 4090, 24564, 550.54.14, 8.9"
OTHER = "00000000:02:00.0, GPU-6b4e6d3a-aaaa-bbbb-cccc-0123456789ab, NVIDIA GeForce RTX 4090, 24564, 550.54.14, 8.9"
BUS = ["0000:01:00.0 030000 10de:2684 a1 driver=nvidia", "0000:02:00.0 030000 10de:2684 a1 driver=nvidia"]
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n"
LOST = (
    "Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
FILES = {"usr/bin/nvidia-smi": "", "proc/driver/nvidia/version": "", "dev/nvidia0": ""}
INTEROP = {"proc/sys/fs/binfmt_misc/WSLInterop": ""}
DXG = {"dev/dxg": "", "usr/lib/wsl/lib/libdxcore.so": ""}


@dataclass(frozen=True)
class Smi:
    """The answer of nvidia-smi: what it prints, and its exit code."""

    text: str
    code: int = 0
    encoding: str = "utf-8"


def machine(folder: Path, smi: Smi, cards: int = 1, **fields: Any) -> Host:
    """Return a Linux machine with NVIDIA cards on the bus, whose nvidia-smi is a real script."""
    files = {**FILES, **fields.pop("files", {})}
    there = host({"pci": BUS[:cards], "files": files, **fields}, folder)
    script = folder / "smi.sh"
    (folder / "smi.txt").write_bytes(smi.text.encode(smi.encoding))
    script.write_text(f"#!/bin/sh\ncat '{folder}/smi.txt'\nexit {smi.code}\n")
    script.chmod(0o755)

    def run(command: Sequence[str], limit_s: float) -> Answer:
        from backend.common.hardware.host import run_command

        answer = run_command((str(script),), 20)
        named = None if answer.trouble is None else answer.trouble.replace(str(script), "nvidia-smi")
        return replace(answer, trouble=named) if command[0].endswith("nvidia-smi") else Answer(trouble="not found")

    return replace(there, run=run)


def listed(there: Host) -> dict[str, Hardware]:
    return {item.id: item for item in list(hardware(there))[-1]}


def facts(item: Hardware) -> tuple[object, ...]:
    return item.memory_bytes, item.uuid, item.architecture


def failing(smi: Smi, reason: str, remedy: str, **fields: Any) -> Callable[[Path], None]:
    """Return the check of a card for which the tool fails: reason and remedy, the name by the bus, no other fact."""

    def check(folder: Path) -> None:
        card = listed(machine(folder, smi, **fields))[CARD]
        assert reason in str(card.reason) and remedy in str(card.remedy), (card.reason, card.remedy)
        assert "RTX 4090" in card.name and facts(card) == (None, None, "sm_89" if card.architecture else None)

    return check


def healthy(smi: Smi, **fields: Any) -> Callable[[Path], None]:
    """Return the check of a card whose facts are complete and right."""

    def check(folder: Path) -> None:
        card = listed(machine(folder, smi, **fields))[CARD]
        assert card.reason is None and card.name == "NVIDIA GeForce RTX 4090", card
        assert facts(card) == (24564 << 20, UUID, "sm_89") and "550.54.14" in str(card.driver)

    return check


def unknown(smi: Smi, **known: object) -> Callable[[Path], None]:
    """Return the check of a card of which only some facts are known: the others are None, not texts."""

    def check(folder: Path) -> None:
        card = listed(machine(folder, smi))[CARD]
        expected = {"memory_bytes": None, "uuid": None, "architecture": None, "reason": None, **known}
        assert {name: getattr(card, name) for name in expected} == expected, card
        assert "RTX 4090" in card.name

    return check


def one_of_two_is_lost(folder: Path) -> None:
    cards = listed(machine(folder, Smi(f"{GOOD}\n{LOST}", 15), cards=2))
    assert cards[CARD].reason is None and facts(cards[CARD])[0] == 24564 << 20
    assert "fallen off the bus" in str(cards[SECOND].reason) and "Restart" in str(cards[SECOND].remedy)


def one_of_two_needs_a_reset(folder: Path) -> None:
    needs = OTHER.replace("24564", "[GPU requires reset]").replace("NVIDIA GeForce RTX 4090", "[GPU requires reset]")
    cards = listed(machine(folder, Smi(f"{GOOD}\n{needs}\n"), cards=2))
    assert cards[CARD].reason is None and "must be reset" in str(cards[SECOND].reason)
    assert "--gpu-reset" in str(cards[SECOND].remedy) and "RTX 4090" in cards[SECOND].name


def a_container_without_the_bus(folder: Path) -> None:
    cards = listed(machine(folder, Smi(f"{GOOD}\n{OTHER}\n"), cards=0, files={".dockerenv": ""}))
    assert [id_ for id_ in cards if id_ != "cpu:0"] == [CARD, SECOND]
    assert cards[CARD].name == "NVIDIA GeForce RTX 4090" and cards[CARD].reason is None


def a_container_that_lost_its_cards(folder: Path) -> None:
    smi = Smi("Failed to initialize NVML: Unknown Error\n", 255)
    there = machine(folder, smi, cards=0, files={".dockerenv": ""})
    (check,) = nvidia_checks(there, list(listed(there).values()))
    assert "Unknown Error" in check.detail and "Restart the container" in str(check.remedy)


def contradicting_rows(folder: Path) -> None:
    more = GOOD.replace("24564", "12282")
    card = listed(machine(folder, Smi(f"{GOOD}\n{more}\n")))[CARD]
    assert facts(card) == (None, UUID, "sm_89"), "two figures: neither is a fact"


def a_silent_driver(folder: Path) -> None:
    pci = ["0000:03:00.0 030000 1002:744c c8 driver=amdgpu", "0000:04:00.0 030000 1002:744c c8 driver=amdgpu"]
    there = host({"pci": pci, "files": {"sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total": "1024"}}, folder)
    os.mkfifo(folder / "sys/bus/pci/devices/0000:04:00.0/mem_info_vram_total")
    cards = listed(there)
    assert cards["pci:0000:03:00.0"].memory_bytes == 1024
    assert "does not answer" in str(cards["pci:0000:04:00.0"].reason) and "dmesg" in str(
        cards["pci:0000:04:00.0"].remedy
    )


def damaged_files_of_amd(folder: Path) -> None:
    device = "sys/bus/pci/devices/0000:03:00.0"
    files = {f"{device}/mem_info_vram_total": "-1", f"{device}/mem_info_gtt_total": "0x", f"{device}/revision": "??"}
    card = listed(host({"pci": ["0000:03:00.0 030000 1002:744c c8 driver=amdgpu"], "files": files}, folder))
    assert (card["pci:0000:03:00.0"].memory_bytes, card["pci:0000:03:00.0"].memory_shared_bytes) == (None, None)


def is_wsl(version: int | None, files: dict[str, str], **environment: str) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        assert wsl(host({"files": files, "environment": environment}, folder)) == version

    return check


def windows(changed: Callable[[dict[str, Any]], object], verify: Callable[[Hardware], object], **smi: str) -> Any:
    """Return the check of a Windows desktop's first card, after a change of what PowerShell answers."""

    def check(folder: Path) -> None:
        fields = sample("windows-desktop")
        fields["windows"] = {**fields["windows"], "devices": fields["windows"]["devices"][:1]}
        changed(fields["windows"])
        cards = found({**fields, "commands": dict(smi)}, folder)
        (card,) = (item for id_, item in cards.items() if id_ != "cpu:0")
        assert verify(card) is not False, card

    return check


def row(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda answer: answer["devices"][0].update(values)


def luid_of_a_signed_number(answer: dict[str, Any]) -> None:
    answer["devices"][0]["properties"]["{60B193CB-5276-4D0F-96FC-F173ABAD3EC6} 2"] = str(-5)
    answer["directx"] = {"Description": "x", "AdapterLuid": -5, "DedicatedVideoMemory": "8031 MB"}


def registry(memory: object) -> Callable[[dict[str, Any]], object]:
    """Return a change after which only the registry's value of the adapter has its memory."""

    def change(answer: dict[str, Any]) -> None:
        answer["devices"][0]["memory"] = memory
        answer["directx"] = None

    return change


def place_unknown(answer: dict[str, Any]) -> None:
    answer["devices"][0]["properties"].update(
        DEVPKEY_Device_BusNumber="4294967295", DEVPKEY_Device_Address="4294967295"
    )


def collapsed(answer: dict[str, Any]) -> None:
    """PowerShell writes an array of one as its element, and an element as an array of one."""
    answer["devices"] = answer["devices"][0]
    answer["directx"] = answer["directx"][0]
    answer["processor"] = [answer["processor"]]


def a_banner_of_windows(folder: Path) -> None:
    fields = sample("windows-desktop")
    text = "WARNING: {profile} not signed\r\n" + json.dumps(fields.pop("windows")) + "\r\nPS C:\\> exit {0}"
    cards = found({**fields, "commands": {"powershell": text}}, folder)
    assert cards["pci:0000:03:00.0"].name == "AMD Radeon RX 7900 XTX"


def windows_is_silent(folder: Path) -> None:
    """PowerShell fails, nvidia-smi answers: its card is listed."""
    cards = found({"platform": "win32", "commands": {"nvidia-smi": GOOD}}, folder)
    assert cards[CARD].name == "NVIDIA GeForce RTX 4090" and cards[CARD].memory_bytes == 24564 << 20


def quota(threads: int, files: dict[str, str], own: str = "0::/box/a") -> Callable[[Path], None]:
    """Return the check of the number of threads under a container's limits, on eight cores."""

    def check(folder: Path) -> None:
        for name, text in {"proc/self/cgroup": own, **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        kept = cgroups.ROOT, cgroups.PROC, resources._affinity, resources._physical_cores
        cgroups.ROOT, cgroups.PROC = folder / "cgroup", folder / "proc"
        resources._affinity, resources._physical_cores = lambda: set(range(8)), lambda allowed: 8
        try:
            assert resources.usable_threads() == threads
        finally:
            cgroups.ROOT, cgroups.PROC, resources._affinity, resources._physical_cores = kept

    return check


AZURE, CUSTOM = {"proc/sys/kernel/osrelease": "5.15.0-1064-azure"}, {"proc/sys/kernel/osrelease": "6.9.0-mine"}
CLOUD = {"proc/sys/kernel/osrelease": "5.10.102-microsoft-azure"}
WSL_2, WSL_1 = "5.15.90.1-microsoft-standard-WSL2", "4.4.0-19041-Microsoft"
RADEON = "AMD Radeon RX 7900 XTX"

STACKS: list[Stack] = []


def _add(category: Category, **checks: Callable[[Path], None]) -> None:
    STACKS.extend(Stack(f"inventory-{name.replace('_', '-')}", category, check) for name, check in checks.items())


_add(
    "other",
    no_devices_with_code_0=failing(Smi("No devices were found\n"), "lists no card", "NVRM"),
    no_devices_with_code_6=failing(Smi("No devices were found\n", 6), "lists no card", "NVRM"),
    no_devices_in_a_container=failing(
        Smi("No devices were found\n", 6), "lists no card", "--gpus all", files={".dockerenv": ""}
    ),
    nvml_mismatch=failing(Smi(MISMATCH, 18), "Driver/library version mismatch", "restart the machine"),
    driver_not_loaded=failing(
        Smi(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n\n",
            9,
        ),
        "driver is not loaded",
        "modprobe nvidia",
    ),
    no_permission=failing(
        Smi("Failed to initialize NVML: Insufficient Permissions\n", 4), "no permission", "ls -l /dev/nvidia*"
    ),
    library_missing=failing(
        Smi(
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
            "Driver is properly installed and present in your system.\n",
            12,
        ),
        "NVML is missing",
        "libnvidia-ml1",
    ),
    garbage=failing(Smi("�� name, speicher\nKarte, 8,5 GiB\n"), "Karte, 8,5 GiB", "Restart the machine"),
    all_values_err=failing(Smi("00000000:01:00.0, ERR!, ERR!, ERR!, 550.54.14, ERR!\n"), "does not answer", "Xid"),
    placeholders=unknown(Smi("00000000:01:00.0, [N/A], [Not Supported], [Insufficient Permissions], N/A, [N/A]\n")),
    no_permission_as_a_value=unknown(
        Smi(f"00000000:01:00.0, {UUID}, No permission, No permission, No permission, -\n"), uuid=UUID
    ),
    one_of_two_cards_is_lost=one_of_two_is_lost,
    one_of_two_cards_needs_a_reset=one_of_two_needs_a_reset,
    container_without_the_bus=a_container_without_the_bus,
    container_that_lost_its_cards=a_container_that_lost_its_cards,
    rows_that_contradict=contradicting_rows,
    silent_driver=a_silent_driver,
    damaged_files_of_amd=damaged_files_of_amd,
    quota_of_one_and_a_half=quota(1, {"cgroup/box/a/cpu.max": "150000 100000"}),
    quota_of_the_group_above=quota(2, {"cgroup/box/a/cpu.max": "max 100000", "cgroup/box/cpu.max": "250000 100000"}),
    quota_below_one=quota(1, {"cgroup/cpu.max": "5000 100000"}),
    quota_of_version_1=quota(
        1,
        {"cgroup/cpu/box/cpu.cfs_quota_us": "190000", "cgroup/cpu/box/cpu.cfs_period_us": "100000"},
        "3:cpu,cpuacct:/box",
    ),
)
_add(
    "windows",
    memory_with_a_unit=windows(registry("24 GB"), lambda card: card.memory_bytes == 24 << 30),
    memory_as_bytes_of_the_registry=windows(
        registry([0, 0, 0, 0, 6, 0, 0, 0]), lambda card: card.memory_bytes == 6 << 32
    ),
    negative_memory=windows(registry(-1048576), lambda card: card.memory_bytes is None),
    signed_luid=windows(
        luid_of_a_signed_number,
        lambda card: card.memory_bytes == 8031 << 20 and card.luid == "0xffffffff_0xfffffffb",
    ),
    unknown_place=windows(place_unknown, lambda card: card.id.startswith("luid:")),
    collapsed_arrays=windows(collapsed, lambda card: (card.name, card.memory_bytes) == (RADEON, 25669402624)),
    lost_trademark_sign=windows(row(name="AMD Radeon\ufffd RX 7900 XTX"), lambda card: card.name == RADEON),
    banner_before_the_answer=a_banner_of_windows,
    powershell_fails=windows_is_silent,
    wsl_with_a_custom_kernel=is_wsl(2, CUSTOM | DXG),
    wsl_with_a_custom_kernel_without_a_card=is_wsl(2, CUSTOM | INTEROP),
    wsl_with_a_custom_kernel_and_its_sockets=is_wsl(2, CUSTOM | {"run/WSL/1_interop": ""}),
    wsl_by_its_variable=is_wsl(2, CUSTOM, WSL_DISTRO_NAME="Debian"),
    container_inside_wsl=is_wsl(2, CUSTOM | DXG | {".dockerenv": ""}),
    azure_kernel=is_wsl(None, AZURE),
    cloud_kernel_with_the_maker_s_name=is_wsl(None, CLOUD),
)
_add(
    "control",
    table=healthy(Smi(GOOD + "\n")),
    table_with_a_banner=healthy(Smi(f"WARNING: infoROM is corrupted at gpu 0000:01:00.0\n{GOOD}\n")),
    table_with_carriage_returns=healthy(Smi(GOOD.replace("\n", "\r\n") + "\r\n")),
    table_in_utf_16=healthy(Smi(GOOD + "\n", encoding="utf-16")),
    table_with_a_mark=healthy(Smi(GOOD + "\n", encoding="utf-8-sig")),
    table_with_a_decimal_comma=healthy(Smi(GOOD.replace("8.9", "8,9") + "\n")),
    table_with_units=healthy(Smi(GOOD.replace("24564", "24564 MiB") + "\n")),
    row_twice=healthy(Smi(f"{GOOD}\n{GOOD}\n")),
    row_with_instances=healthy(
        Smi(f"{GOOD}\n  MIG 1g.10gb Device 0: (UUID: MIG-5b4e6d3a-1111-2222-3333-012345678901)\n")
    ),
    wsl_2=is_wsl(2, {"proc/sys/kernel/osrelease": WSL_2}),
    wsl_1=is_wsl(1, {"proc/sys/kernel/osrelease": WSL_1}),
    whole_quota=quota(2, {"cgroup/box/a/cpu.max": "200000 100000"}),
    no_quota=quota(8, {"cgroup/box/a/cpu.max": "max 100000"}),
)
