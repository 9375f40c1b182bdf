"""Free memory of cards from AMD's files and NVIDIA's tool; None if unknown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backend.common.hardware.free_memory import TOOL_S, card_free_bytes
from backend.common.hardware.host import Answer, Host

ID = "pci:0000:01:00.0"


def test_amd_s_files_tell(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "mem_info_vram_total").write_text("1000\n")
    (folder / "mem_info_vram_used").write_text("300\n")
    host = Host(tmp_path, "linux", {}, _no_command)
    assert card_free_bytes(ID, host) == 700
    assert card_free_bytes("pci:0000:02:00.0", host) is None
    assert card_free_bytes("cpu:0", host) is None and card_free_bytes("luid:7", host) is None


def test_nvidia_s_tool_tells_and_is_asked_only_where_its_driver_is(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").touch()
    said = ["00000000:01:00.0, 2048\n00000000:02:00.0, [N/A]\n"]

    def run(command: Sequence[str], limit_s: float) -> Answer:
        assert "memory.free" in command[1] and limit_s == TOOL_S
        return Answer(said[0])

    assert card_free_bytes(ID, Host(tmp_path, "linux", {}, _no_command)) is None
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    host = Host(tmp_path, "linux", {}, run)
    assert card_free_bytes(ID, host) == 2048 << 20
    assert card_free_bytes("pci:0000:02:00.0", host) is None
    said[0] = "Failed to initialize NVML: Driver/library version mismatch\n"
    assert card_free_bytes(ID, host) is None


def _no_command(command: Sequence[str], limit_s: float) -> Answer:
    raise AssertionError(f"nothing is to be run here: {command}")
