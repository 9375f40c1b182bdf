"""Truncated files, files with random content, folders instead of files, and invalid tool output: never an exception."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.common.hardware import nvidia, windows
from backend.common.hardware.system import system
from backend.common.hardware.windows_checks import windows_checks
from tests.inventory.machines import NAMES, host, sample, steps

RUBBISH = (
    "",
    "\0\0\0",
    "0x",
    "-1",
    "99999999999999999999999999",
    "ü\ud7ff𝄞",
    "::::",
    "\n" * 50,
    "[]",
    '{"a": [1, {}]}',
    "null",
)


def broken(machine: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return the machine with some of its texts truncated, doubled or replaced."""

    def change(text: str) -> str:
        fate = dice.random()
        if fate < 0.4:
            return text
        if fate < 0.7:
            return text[: dice.randrange(len(text) + 1)]
        return dice.choice(RUBBISH) if fate < 0.9 else text * 2

    changed = dict(machine)
    changed["files"] = {name: change(text) for name, text in machine.get("files", {}).items()}
    commands = {name: change(text) for name, text in machine.get("commands", {}).items()}
    if "windows" in machine:
        commands["powershell"] = change(json.dumps(changed.pop("windows")))
    changed["commands"] = commands
    return changed


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of each plain value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from leaves(inner, (*path, key))


@pytest.mark.parametrize("name", NAMES)
def test_cut_and_garbled_texts(name: str, tmp_path: Path) -> None:
    dice = random.Random(f"{name} 5")
    for number in range(6):
        machine = broken(sample(name), dice)
        for step in steps(machine, tmp_path / str(number)):
            ids = [item.id for item in step]
            assert ids[0] == "cpu:0" and len(set(ids)) == len(ids)
        system(host({**machine, "pci": [], "files": {}, "links": {}}, tmp_path / str(number)), step)


@pytest.mark.parametrize("name", [name for name in NAMES if "windows" in sample(name)])
def test_windows_answers_of_any_type(name: str, tmp_path: Path) -> None:
    text = json.dumps(sample(name)["windows"])
    dice = random.Random(name)
    there = host(sample(name), tmp_path)
    for path in leaves(json.loads(text)):
        changed = json.loads(text)
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = dice.choice((None, [], {}, "", "x", -1, [None], {"a": 1}, True, 1 << 70))
        facts_of_windows = windows.parse_facts(json.dumps(changed))
        found = [windows.windows_cpu(there, facts_of_windows), *windows.adapters(facts_of_windows, nvidia.Driver({}))]
        assert len({item.id for item in found}) == len(found)
        assert all(check.detail for check in windows_checks(there, facts_of_windows))


def test_folders_where_files_should_be(tmp_path: Path) -> None:
    machine = sample("amd-two-cards")
    for name in list(machine["files"]):
        if name.endswith("properties"):
            machine["files"][f"{name}/inside"] = machine["files"].pop(name)
    assert len(steps(machine, tmp_path)[-1]) == 3


def test_a_sysfs_file_that_refuses_to_be_read(tmp_path: Path) -> None:
    """kfd returns "operation not permitted" for other users' cards."""
    machine = sample("two-of-one-name")
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    host(machine, tmp_path)
    (nodes / "2" / "properties").unlink()
    (nodes / "2" / "properties").symlink_to("properties")  # a loop: opening it fails
    cards = [item for item in steps({"environment": {}}, tmp_path)[-1] if item.kind == "gpu"]
    assert [card.architecture for card in cards] == ["gfx1100", "gfx1100"]
    assert [card.uuid is None for card in cards] == [False, True]
