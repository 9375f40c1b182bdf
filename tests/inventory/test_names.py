"""Names and ids: spellings of addresses, the lists of chips and the program that generates the extract."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.common.hardware import make_chip_names
from backend.common.hardware.chip_names import product_name, vendor_name
from backend.common.hardware.chips import amd_target, kind_of
from backend.common.hardware.ids import luid_id, matching, pci_id, pci_id_of, uuid_id
from backend.common.types import Hardware

PCI_IDS = """\
#\tVersion: 2026.10.24
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
\t\t1da2 e471  NITRO+ RX 7900 XTX Vapor-X
\tab30  Navi 31 HDMI/DP Audio
8086  Intel Corporation
\t0162  IvyBridge GT2 [HD Graphics 4000]
\t1237  440FX - 82441FX PMC [Natoma]
C 03  Display controller
\t00  VGA compatible controller
"""
AMD_IDS = "# List\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\nbroken line\n"


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("0000:01:00.0", "pci:0000:01:00.0"),
        ("00000000:06:00.0", "pci:0000:06:00.0"),  # nvidia-smi
        ("01:00.0", "pci:0000:01:00.0"),  # lspci
        ("0000:c1:00", "pci:0000:c1:00.0"),
        ("10000:E1:1F.7", "pci:10000:e1:1f.7"),  # behind a volume controller
        ("pci:0000:01:00.0", "pci:0000:01:00.0"),
        ("0000:00:00.0", None),  # the address that software devices report
        ("0000:01:20.0", None),
        ("GPU-0", None),
        ("", None),
    ],
)
def test_an_address_in_any_spelling(text: str, id_: str | None) -> None:
    assert pci_id_of(text) == id_


def test_the_same_card_by_its_other_names() -> None:
    card = Hardware(pci_id(0, 1, 0), "x", None, "gpu", uuid="GPU-AAAA-1", luid="0x00000000_0x0000c8d2")
    others = [Hardware("cpu:0", "y", None, "cpu"), card]
    for identity in ("pci:0000:01:00.0", luid_id(0xC8D2), uuid_id("GPU-aaaa-1"), uuid_id("aaaa-1")):
        assert matching(others, identity) is card
    assert matching(others, "pci:0000:02:00.0") is None
    assert matching(others, "cpu:0") is others[0]


@pytest.mark.parametrize(
    ("vendor", "device", "revision", "name"),
    [
        ("1002", "744c", "c8", "AMD Radeon RX 7900 XTX"),
        ("1002", "744c", "cc", "AMD Radeon RX 7900 XT"),
        ("1002", "7550", "c0", "AMD Radeon RX 9070 XT"),
        ("10de", "2684", "a1", "NVIDIA GeForce RTX 4090"),
        ("8086", "e20b", "00", "Intel Arc B580"),
        ("8086", "0162", "09", "Intel HD Graphics 4000"),
        ("8086", "7d55", "08", "Intel Arc Graphics"),
        ("10de", "ffff", "a1", None),
    ],
)
def test_what_a_card_is_sold_as(vendor: str, device: str, revision: str, name: str | None) -> None:
    assert product_name(vendor, device, revision) == name


@pytest.mark.parametrize(
    ("device", "target", "kind"),
    [
        ("744c", "gfx1100", "gpu"),
        ("7550", "gfx1201", "gpu"),
        ("1586", "gfx1151", "integrated"),
        ("150e", "gfx1150", "integrated"),
        ("15bf", "gfx1103", "integrated"),
        ("66a1", "gfx906", "gpu"),
        ("740f", "gfx90a", "gpu"),
        ("75a0", "gfx950", "gpu"),
        ("687f", "gfx900", "gpu"),
    ],
)
def test_amd_s_families(device: str, target: str, kind: str) -> None:
    assert amd_target("1002", device) == target
    assert kind_of("1002", device, bus=3) == kind


def test_vendors_by_the_names_that_people_use() -> None:
    assert [vendor_name(v) for v in ("1002", "10de", "8086", "17cb", "1ed5")] == [
        *("AMD", "NVIDIA", "Intel", "Qualcomm"),
        "Moore Threads Technology Co.,Ltd",
    ]


def test_the_extract_is_made_from_the_lists(tmp_path: Path) -> None:
    pci, amd = tmp_path / "pci.ids", tmp_path / "amdgpu.ids"
    pci.write_text(PCI_IDS, encoding="utf-8")
    amd.write_text(AMD_IDS, encoding="utf-8")
    assert make_chip_names.main([str(pci), str(amd)], tmp_path / "names.txt") == 0
    made = (tmp_path / "names.txt").read_text(encoding="utf-8").splitlines()
    assert "2026.10.24" in made[0]
    assert made[2:] == [
        "1002 Advanced Micro Devices, Inc. [AMD/ATI]",
        "\t744c Navi 31 [Radeon RX 7900 XT/7900 XTX]",
        "8086 Intel Corporation",
        "\t0162 IvyBridge GT2 [HD Graphics 4000]",
        "1002",
        "\t744c:c8 AMD Radeon RX 7900 XTX",
    ]
