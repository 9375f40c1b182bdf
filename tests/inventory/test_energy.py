"""Energy and power of cards from hwmon, NVIDIA's library and tool; None if unknown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from backend.common.hardware.energy import card_j, card_w
from backend.common.hardware.free_memory import TOOL_S
from backend.common.hardware.host import Answer, Host

ID = "pci:0000:03:00.0"


def _no_command(command: Sequence[str], limit_s: float) -> Answer:
    raise AssertionError(f"nothing is to be run here: {command}")


@pytest.mark.parametrize(("file", "watts"), [("power1_average", 41.5), ("power1_input", 41.5)])
def test_amd_s_driver_tells_watts(tmp_path: Path, file: str, watts: float) -> None:
    sensors = tmp_path / "sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon5"
    sensors.mkdir(parents=True)
    (sensors / file).write_text("41500000\n")
    host = Host(tmp_path, "linux", {}, _no_command)
    assert card_w(ID, host) == watts and card_j(ID, host) is None
    assert card_w("pci:0000:04:00.0", host) is None and card_w("cpu:0", host) is None


def test_a_counter_is_read_where_there_is_one(tmp_path: Path) -> None:
    sensors = tmp_path / "sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon2"
    sensors.mkdir(parents=True)
    (sensors / "energy1_input").write_text("7250000\n")
    assert card_j(ID, Host(tmp_path, "linux", {}, _no_command)) == 7.25


@pytest.mark.parametrize(("said", "value"), [("120.25", 120.25), ("[N/A]", None), ("", None)])
def test_nvidia_s_are_asked_only_where_its_driver_is(tmp_path: Path, said: str, value: float | None) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").touch()

    def run(command: Sequence[str], limit_s: float) -> Answer:
        assert limit_s == TOOL_S
        if "power.draw" in command[1]:
            return Answer(f"00000000:01:00.0, 3\n00000000:03:00.0, {said}\n")
        assert command[-1] == "0000:03:00.0" and Path(command[-2]).is_file()
        return Answer(f"{said}\n")

    assert card_j(ID, Host(tmp_path, "linux", {}, _no_command)) is None
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    host = Host(tmp_path, "linux", {}, run)
    assert (card_w(ID, host), card_j(ID, host)) == (value, value)
