"""Answers of drivers and tools as they are in the field: placeholders, lost cards, other languages, cut texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.hardware import amd, apple, energy, nvidia, pci, soc, windows
from backend.common.hardware.access import refused
from backend.common.hardware.access_problems import obstacle
from backend.common.hardware.chips import AMD, INTEL, NVIDIA, cannot_compute, emulated_by, is_npu, kind_of
from backend.common.hardware.cpu import maker_of
from backend.common.hardware.host import Answer, Host, number, telling_line, text_of
from backend.common.hardware.ids import luid_text, pci_id_of
from backend.common.hardware.visibility import hidden_by
from backend.common.hardware.wsl import wsl
from backend.common.types import Hardware
from tests.inventory.machines import host

Make = Callable[..., Host]
FEW = settings(max_examples=40, derandomize=True, database=None, deadline=None)
SMI = "usr/bin/nvidia-smi"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that builds a machine from the fields of a sample."""
    return lambda **fields: host(fields, tmp_path)


def smi(make: Make, table: str) -> nvidia.Driver:
    return nvidia.from_tool(make(files={SMI: ""}, commands={"nvidia-smi": table}))


GOOD = "00000000:01:00.0, GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab, NVIDIA H100 PCIe, 81559, 580.95.05, 9.0"


def test_a_table_of_nvidia_smi_is_read(make: Make) -> None:
    driver = smi(make, GOOD + "\n00000000:C1:00.0, GPU-x, Tesla T4, 15360, 580.95.05, 7.5\n")
    first, second = driver.cards["pci:0000:01:00.0"], driver.cards["pci:0000:c1:00.0"]
    assert (first.memory_bytes, first.architecture, driver.version) == (81559 << 20, "sm_90", "580.95.05")
    assert (second.name, second.architecture) == ("NVIDIA Tesla T4", "sm_75")


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.  Reboot the system.",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "[Unknown Error], [Unknown Error], [GPU is lost], [GPU is lost], 580.95.05, [N/A]",
        "00000000:02:00.0, GPU-x",
        "",
        ",,,,,",
    ],
)
def test_a_card_that_is_lost_does_not_hide_the_others(make: Make, line: str) -> None:
    assert list(smi(make, f"{line}\n{GOOD}\n{line}").cards) == ["pci:0000:01:00.0"]


def test_placeholders_of_nvidia_smi_are_unknown_and_not_texts(make: Make) -> None:
    card = smi(make, "00000000:01:00.0, [N/A], [Unknown Error], [Not Supported], N/A, [N/A]").cards["pci:0000:01:00.0"]
    assert card == nvidia.CardFacts()


def test_a_missing_power_cable_is_named_and_is_no_lost_card(make: Make) -> None:
    message = "Unable to determine the device handle for GPU 0000:02:00.0: Insufficient External Power"
    failure = smi(make, f"{message}\n{GOOD}").card_failures["pci:0000:02:00.0"]
    assert "power cable" in failure.reason and "connect all power cables" in failure.remedy


def test_a_separator_of_thousands_is_no_decimal_comma(make: Make) -> None:
    assert smi(make, GOOD.replace("81559", "81,559 MiB")).cards["pci:0000:01:00.0"].memory_bytes is None
    assert smi(make, GOOD.replace("81559", "81559,0")).cards["pci:0000:01:00.0"].memory_bytes == 81559 << 20


@pytest.mark.parametrize(
    "hint",
    [
        "If you continue to see this error, contact support.",
        "See the log for error details.",
        "Please check the error.",
    ],
)
def test_a_hint_after_the_failure_is_not_the_reason(make: Make, hint: str) -> None:
    text = f"Failed to initialize NVML: Unknown Error\n{hint}\n"
    assert telling_line(text) == "Failed to initialize NVML: Unknown Error"
    failure = smi(make, text).failure
    assert failure and "NVML: Unknown Error" in failure.reason


def test_an_empty_variable_is_no_sign_of_wsl(make: Make) -> None:
    kernel = {"proc/sys/kernel/osrelease": "6.6.36-custom"}
    assert wsl(make(files=kernel, environment={"WSL_DISTRO_NAME": ""})) is None
    assert wsl(make(files=kernel, environment={"WSL_DISTRO_NAME": "Debian"})) == 2


def test_a_tool_that_fails_is_reported_with_what_it_printed(make: Make, tmp_path: Path) -> None:
    assert nvidia.from_tool(make()) == nvidia.Driver({}), "no tool, no error"
    driver = nvidia.from_tool(make(files={SMI: ""}))
    assert driver.cards == {} and "not found" in str(driver.failure)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12 09:19:07 UTC 2022", "390.157"),
        ("GCC version:  gcc version 13.3.0", None),
        ("", None),
    ],
)
def test_the_version_of_the_kernel_s_driver(make: Make, line: str, version: str | None) -> None:
    assert nvidia.driver_version(make(files={"proc/driver/nvidia/version": line + "\nGCC version: 13.3.0"})) == version


def test_facts_of_a_sleeping_card_are_left_open(make: Make) -> None:
    information = (
        "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 1\nrubbish"
    )
    driver = nvidia.from_files(make(files={"proc/driver/nvidia/gpus/0000:01:00.0/information": information}))
    assert driver.cards == {"pci:0000:01:00.0": nvidia.CardFacts(minor=1)}


@pytest.mark.parametrize(
    ("answer", "free", "watts"),
    [("00000000:01:00.0, 1024", 1 << 30, 1024.0), ("00000000:01:00.0, [N/A]", None, None), ("0:2:0, 5", None, None)],
)
def test_one_field_of_one_card(make: Make, answer: str, free: int | None, watts: float | None) -> None:
    machine = make(files={SMI: "", "proc/driver/nvidia/version": ""}, commands={"nvidia-smi": answer})
    assert nvidia.free_bytes(machine, "pci:0000:01:00.0", 1) == free
    assert energy.card_w("pci:0000:01:00.0", machine) == watts


@FEW
@given(st.text(max_size=200))
def test_no_text_upsets_the_reader_of_the_table(text: str) -> None:
    machine = Host(Path("/nonexistent"), "win32", {}, run=lambda command, limit_s: Answer(text))
    driver = nvidia.from_tool(machine)
    assert all(id_.startswith("pci:") for id_ in driver.cards)


def kfd(make: Make, **properties: object) -> dict[str, amd.Node]:
    lines = "\n".join(f"{key} {value}" for key, value in properties.items())
    return amd.nodes(make(files={f"{amd.NODES}/1/properties": lines}))


@pytest.mark.parametrize(
    ("version", "target"),
    [(90010, "gfx90a"), (90402, "gfx942"), (110000, "gfx1100"), (90012, "gfx90c"), (120001, "gfx1201"), (0, None)],
)
def test_targets_of_amd_are_written_as_compilers_name_them(make: Make, version: int, target: str | None) -> None:
    (node,) = kfd(make, simd_count=304, location_id=0x0300, gfx_target_version=version).values()
    assert node.target == target


def test_an_address_is_unpacked_from_its_bits(make: Make) -> None:
    nodes = kfd(make, simd_count=4, location_id=0xC1 << 8 | 0x1F << 3 | 3, domain=1, unique_id=0xF4AE0A15)
    assert list(nodes) == ["pci:0001:c1:1f.3"]
    assert nodes["pci:0001:c1:1f.3"].uuid == "GPU-00000000f4ae0a15"


@pytest.mark.parametrize(
    "properties", [{"simd_count": 0, "location_id": 5}, {"simd_count": 4}, {"simd_count": "x", "location_id": 5}, {}]
)
def test_nodes_of_processors_and_damaged_ones_are_no_cards(make: Make, properties: dict[str, object]) -> None:
    assert kfd(make, **properties) == {}


def test_only_memory_on_the_card_counts(make: Make) -> None:
    banks = {
        f"{amd.NODES}/1/mem_banks/{bank}/properties": f"heap_type {heap}\nsize_in_bytes {size}\nflags\n"
        for bank, (heap, size) in enumerate([(0, 500), (1, 20), (2, 3), (4, 64)])
    }
    card = {f"{amd.NODES}/1/properties": "simd_count 4\nlocation_id 768\n"}
    (node,) = amd.nodes(make(files={**card, **banks})).values()
    assert node.memory_bytes == 23


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"SPDisplaysDataType": 5}', '{"SPDisplaysDataType": [1, null, {}]}']
)
def test_odd_answers_of_system_profiler_are_no_cards(text: str) -> None:
    assert apple.graphics(text, 1 << 34, None) == []


def test_cards_of_a_mac_with_sizes_in_any_unit() -> None:
    entries = [
        {"sppci_model": "Apple M3 Max", "sppci_cores": "40"},
        {"_name": "AMD Radeon Pro 5500M", "spdisplays_vram": "8 GB", "spdisplays_vendor": "x"},
        {
            "sppci_model": "Intel UHD Graphics 630",
            "spdisplays_vram_shared": "1536 MB",
            "sppci_bus": "spdisplays_builtin",
        },
        {"sppci_model": "Radeon", "spdisplays_vendor-id": "0x1002", "spdisplays_device-id": "0x7340"},
    ]
    own, pro, uhd, plain = apple.graphics(json.dumps({"SPDisplaysDataType": entries}), 1 << 36, "macOS 15")
    assert (own.kind, own.memory_bytes, own.memory_shared_bytes, own.cores) == ("integrated", None, 1 << 36, 40)
    assert (pro.kind, pro.vendor, pro.memory_bytes) == ("gpu", "AMD", 8 << 30)
    assert (uhd.kind, uhd.memory_shared_bytes) == ("integrated", 1536 << 20)
    assert (plain.vendor, plain.pci_ids) == ("AMD", "1002:7340")
    assert len({card.id for card in (own, pro, uhd, plain)}) == 4


def adapter(**changes: Any) -> dict[str, Any]:
    properties = {
        "DEVPKEY_Device_BusNumber": "1",
        "DEVPKEY_Device_Address": "0",
        "DEVPKEY_Device_DriverVersion": "32.0",
    }
    return {
        "name": "NVIDIA GeForce RTX 4090",
        "instance": "PCI\\VEN_10DE&DEV_2684&SUBSYS_16F41043&REV_A1\\4&2283F625&0&0008",
        "class": "Display",
        "error": 0,
        "properties": properties,
        **changes,
    }


def of_windows(*rows: Any, directx: Any = None) -> list[Hardware]:
    text = json.dumps({"devices": rows[0] if len(rows) == 1 else list(rows), "directx": directx})
    return windows.adapters(windows.parse_facts(f"Loading profile…\r\n{text}\r\nPS C:\\>"), nvidia.Driver({}))


def test_a_single_row_is_written_without_its_list() -> None:
    (card,) = of_windows(adapter())
    assert (card.id, card.pci_ids, card.driver, card.kind) == ("pci:0000:01:00.0", "10de:2684", "32.0", "gpu")


def test_memory_comes_from_directx_by_the_adapter_s_number() -> None:
    properties = {**adapter()["properties"], "{60B193CB-5276-4D0F-96FC-F173ABAD3EC6} 2": "51410"}
    memory = {"AdapterLuid": 51410, "DedicatedVideoMemory": 25_350_000_000, "SharedSystemMemory": 16 << 30}
    (card,) = of_windows(adapter(properties=properties, memory=1), directx=memory)
    assert (card.memory_bytes, card.memory_shared_bytes, card.luid) == (25_350_000_000, 16 << 30, luid_text(51410))
    (other,) = of_windows(adapter(properties=properties, memory=7), directx={**memory, "AdapterLuid": 1})
    assert (other.memory_bytes, other.memory_shared_bytes) == (7, None)


@pytest.mark.parametrize(
    ("code", "words"), [(22, "disabled"), (28, "no driver"), (43, "stopped"), (99, "does not work")]
)
def test_codes_of_the_device_manager_are_explained(code: int, words: str) -> None:
    (card,) = of_windows(adapter(error=code))
    assert words in str(card.reason) and f"code {code}" in str(card.reason) and card.remedy


@pytest.mark.parametrize(
    "instance",
    [
        "ROOT\\BASICRENDER\\0000",
        "SWD\\REMOTEDISPLAYENUM\\X",
        "VMBUS\\{DA0A7802}",
        "USB\\VID_17E9&PID_6000",
        "ROOT\\VDD\\0",
    ],
)
def test_displays_of_programs_and_virtual_machines_are_emulated(instance: str) -> None:
    (card,) = of_windows(adapter(instance=instance, name="Display"))
    assert card.kind == "emulated" and "cannot compute" in str(card.reason)


def test_a_card_without_an_address_keeps_an_id_that_holds_no_serial_number() -> None:
    (card,) = of_windows(adapter(instance="ACPI\\VEN_QCOM&DEV_0C36\\SERIAL123", properties={}))
    assert card.id == "platform:acpi\\ven_qcom&dev_0c36"


@pytest.mark.parametrize(
    "row", [{}, {"class": "Display"}, {"class": "Display", "properties": [1]}, {"class": "Net"}, 5, None, "x"]
)
def test_rows_of_any_form_are_adapters_or_nothing(row: Any) -> None:
    assert all(card.name for card in of_windows(row, directx=row))


@pytest.mark.parametrize("text", ["", "{", "} {", "[1]", "{}{}", "The term 'powershell' is not recognized"])
def test_a_silent_or_broken_powershell_is_trouble(text: str) -> None:
    assert windows.parse_facts(text).trouble
    assert windows.parse_facts(text, "timed out after 25 s").trouble == "timed out after 25 s"


def card(make: Make, line: str, **fields: Any) -> tuple[Host, pci.Card]:
    machine = make(pci=[line], **fields)
    (found,) = pci.cards(machine)
    return machine, found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0000:00:02.0 030000 1234:1111 02", "QEMU"),
        ("0000:03:00.0 030000 1a03:2000 52 driver=ast", "management controller"),
        ("0000:03:00.0 030000 10de:2684 a1 driver=vfio-pci", "reserved for virtual machines"),
        ("0000:03:00.0 030000 10de:2684 a1 driver=nouveau", "does not support CUDA"),
        ("0000:03:00.0 030000 1002:744c c8", "No driver is loaded"),
        ("0000:03:00.1 030000 1002:744c c8 driver=amdgpu physfn=0000:03:00.0", "virtual function"),
    ],
)
def test_a_card_that_cannot_compute_has_a_reason_and_a_remedy(make: Make, line: str, words: str) -> None:
    problem = obstacle(*card(make, line), minor=None)
    assert problem is not None and words in problem[0] and problem[1].endswith(".")


def test_a_node_that_is_missing_or_closed_is_the_obstacle(make: Make) -> None:
    machine, found = card(make, "0000:03:00.0 030000 1002:744c c8 driver=amdgpu render=renderD128")
    assert obstacle(machine, found, None) is None
    closed = make(refused=["dev/dri/renderD128"], groups={"dev/dri/renderD128": "render"})
    reason, remedy = obstacle(closed, found, None) or ("", "")
    assert "its group is render" in reason and "usermod -aG render $USER" in remedy
    machine.path("dev/dri/renderD128").unlink()
    assert "is missing although the driver is loaded" in str(obstacle(machine, found, None))


def test_an_nvidia_card_without_its_node_is_helped_by_where_it_runs(make: Make) -> None:
    machine, found = card(make, "0000:03:00.0 030000 10de:2684 a1 driver=nvidia")
    assert obstacle(machine, found, None) is None, "the number of its node is unknown"
    assert "nvidia-modprobe" in str(obstacle(machine, found, 0))
    inside = make(files={".dockerenv": ""})
    assert "--gpus all" in str(obstacle(inside, found, 0))
    assert "--device /dev/dri`" in str(refused(inside, inside.path("dev/dri/renderD9")))


def test_garbage_on_the_bus_is_left_out(make: Make) -> None:
    files = {
        f"{pci.DEVICES}/0000:05:00.0/class": "0x030000",
        f"{pci.DEVICES}/0000:06:00.0/class": "video",
        f"{pci.DEVICES}/not-an-address/class": "0x030000",
        f"{pci.DEVICES}/0000:05:00.0/vendor": "0x123456",
    }
    assert pci.cards(make(files=files)) == []
    assert pci.on_pci(Path("/sys/devices/pci0000:00/0000:00:02.0/drm")) and not pci.on_pci(
        Path("/sys/devices/platform")
    )


@pytest.mark.parametrize(
    ("vendor", "device", "bus", "kind"),
    [
        (NVIDIA, "ffff", 0, "gpu"),
        (INTEL, "ffff", 3, "integrated"),
        (AMD, "ffff", 3, "gpu"),
        ("5143", "1", 0, "integrated"),
    ],
)
def test_a_chip_that_no_list_knows_is_judged_by_its_vendor_and_bus(
    vendor: str, device: str, bus: int, kind: str
) -> None:
    assert kind_of(vendor, device, bus=bus) == kind
    assert not emulated_by(vendor, device) and not cannot_compute(vendor) and not is_npu(vendor, device, 0x030000)


def test_an_accelerator_is_an_npu_unless_its_vendor_sells_it_as_a_gpu() -> None:
    assert is_npu("1da3", "1020", 0x120000)
    assert not is_npu(NVIDIA, "2330", 0x120000) and not is_npu(AMD, "74a1", 0x120000)


def test_a_display_without_a_renderer_is_no_device_and_an_emulated_one_is_named(make: Make) -> None:
    device = "sys/devices/platform/gpu"
    files = {f"{device}/uevent": "DRIVER=msm\nOF_COMPATIBLE_0=qcom,adreno-690.0\n"}
    links = {"sys/class/drm/card0/device": "../../../devices/platform/gpu"}
    assert soc.devices_of(make(files=files, links=links)) == []
    files[f"{device}/drm/renderD128/dev"] = files["dev/dri/renderD128"] = ""
    (found,) = soc.devices_of(make(files=files))
    assert (found.vendor, found.name, found.render_node) == ("Qualcomm", "Qualcomm adreno-690.0", "/dev/dri/renderD128")
    files[f"{device}/uevent"] = "DRIVER=vkms\n"
    (found,) = soc.devices_of(make(files=files))
    assert found.kind == "emulated" and found.remedy


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("13th Gen Intel(R) Core(TM) i9", "Intel"),
        ("AMD EPYC 9654", "AMD"),
        ("Apple M4", "Apple"),
        ("Neoverse-N1", None),
    ],
)
def test_the_maker_is_read_from_a_processor_s_name(name: str, maker: str | None) -> None:
    assert maker_of(name) == maker


@pytest.mark.parametrize(("text", "value"), [(" 12 ", 12), ("-1", None), ("0x1f", None), ("", None), ("1.0", None)])
def test_numbers_in_small_files_are_not_negative(tmp_path: Path, text: str, value: int | None) -> None:
    (tmp_path / "file").write_bytes(text.encode() + b"\0\n")
    assert number(text_of(tmp_path / "file")) == value
    assert number("0x1f", 16) == 31


@FEW
@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_an_address_is_the_same_in_every_tool_s_spelling(domain: int, bus: int, device: int, function: int) -> None:
    spellings = [
        f"{domain:04x}:{bus:02x}:{device:02x}.{function}",
        f"{domain:08X}:{bus:02X}:{device:02X}.{function}",
        f" pci:{domain:04x}:{bus:02x}:{device:02x}.{function}\n",
    ]
    ids: Sequence[str | None] = [pci_id_of(text) for text in spellings]
    assert len(set(ids)) == 1
    assert (ids[0] is None) == (domain == bus == device == function == 0)


@FEW
@given(
    st.sampled_from(["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "MESA_VK_DEVICE_SELECT"]),
    st.text(st.sampled_from("0123456789,-.! GPUabx:"), max_size=12),
)
def test_any_value_of_a_variable_is_explained_in_sentences(name: str, value: str) -> None:
    makers = {"CUDA": "NVIDIA", "ROCR": "AMD", "ZE_A": "Intel", "MESA": "AMD"}
    cards = [Hardware(f"pci:0000:0{bus}:00.0", "Card", makers[name[:4]], "gpu", uuid=f"GPU-{bus}") for bus in (1, 2, 3)]
    for id_, sentences in hidden_by(cards, {name: value}).items():
        assert id_ in {item.id for item in cards}
        assert all(name in sentence and sentence.endswith(".") and "\n" not in sentence for sentence in sentences)


@pytest.mark.parametrize("value", ["[GPU recovery required]", "[Unknown Error]"])
def test_a_row_without_any_fact_is_a_card_that_does_not_answer(make: Make, value: str) -> None:
    driver = smi(make, f"00000000:02:00.0, {value}, {value}, {value}, 580.95.05, {value}\n{GOOD}")
    assert "does not answer" in driver.card_failures["pci:0000:02:00.0"].reason
    assert list(driver.card_failures) == ["pci:0000:02:00.0"]


def test_a_tool_that_prints_nothing_lists_no_card(make: Make) -> None:
    failure = smi(make, "").failure
    assert failure and "lists no card" in failure.reason and "dmesg" in failure.remedy
