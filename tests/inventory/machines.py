"""Sample machines: files, links and command output in one YAML file each, used as a Host.

`windows` is the output of `windows_query` before PowerShell converts it to JSON. `pci` is a short form of a card's
files in sysfs: `ADDRESS CLASS VENDOR:DEVICE REVISION [KEY=VALUE …]`, where keys are driver, render, accel, and names of
files below the device. A comment at the top of each sample gives the source of its values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from backend.common.hardware import hardware
from backend.common.hardware.host import Answer, Host
from backend.common.types import Hardware

SAMPLES = Path(__file__).parents[1] / "samples" / "inventory"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.yaml"))
MEMORY = 16 << 30


def sample(name: str) -> dict[str, Any]:
    """Load the YAML file of one machine."""
    loaded: dict[str, Any] = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def host(machine: dict[str, Any], root: Path) -> Host:
    """Return the machine as a Host, with its files below `root`."""
    for line in machine.get("pci", []):
        _card(root, line.split())
    for name, text in machine.get("files", {}).items():
        _file(root / name, text)
    for name, target in machine.get("links", {}).items():
        _link(root / name, target)
    groups: dict[str, str] = machine.get("groups", {})
    refused = {root / name for name in machine.get("refused", [])}
    commands: dict[str, str] = dict(machine.get("commands", {}))
    if "windows" in machine:
        commands["powershell"] = json.dumps(machine["windows"])

    def run(command: Sequence[str], limit_s: float) -> Answer:
        name = command[0].replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
        if "load_libcuda.py" in command[-1]:
            name = "load_libcuda"
        known = commands.get(name)
        return Answer(known) if known is not None else Answer(trouble=f"{command[0]} cannot be run (not found)")

    return Host(
        root=root,
        platform=machine.get("platform", "linux"),
        environment=machine.get("environment", {}),
        run=run,
        may_use=lambda path: path not in refused,
        group_of=lambda path: groups.get(path.relative_to(root).as_posix()),
        memory_bytes=lambda: MEMORY,
        usable_threads=lambda: machine.get("usable_threads", 64),
    )


def steps(machine: dict[str, Any], root: Path) -> list[list[Hardware]]:
    """Return the inventory of the machine, step by step."""
    return list(hardware(host(machine, root)))


def found(machine: dict[str, Any], root: Path) -> dict[str, Hardware]:
    """Return the most complete inventory, by id."""
    return {item.id: item for item in steps(machine, root)[-1]}


def _card(root: Path, words: list[str]) -> None:
    address, device_class, ids, revision, *rest = words
    path = root / "sys/bus/pci/devices" / address
    vendor, device = ids.split(":")
    for name, value in (("class", device_class), ("vendor", vendor), ("device", device), ("revision", revision)):
        _file(path / name, f"0x{value}\n")
    for key, value in (word.split("=") for word in rest):
        if key == "driver":
            _link(path / "driver", f"../../../../bus/pci/drivers/{value}")
        elif key == "physfn":
            _link(path / "physfn", f"../{value}")
        elif key in ("render", "accel"):
            folder = {"render": "drm", "accel": "accel"}[key]
            (path / folder / value).mkdir(parents=True)
            _file(root / "dev" / {"render": "dri", "accel": "accel"}[key] / value, "")
        else:
            _file(path / key, f"{value}\n")


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
