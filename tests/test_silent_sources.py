"""A server whose files, tools, probes and model folders never answer: lists come, jobs end with a reason, it stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.common.bounded_reads import paths_without_answer
from backend.common.config.settings import load_settings
from backend.models import Catalogue
from tests.faults.silent_server import DEAD
from tests.inventory.machines import host, steps
from tests.service import ROOT, Server, wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
LIMIT_S = 5.0
CARD = "pci:0000:01:00.0"
PIPES = (
    "a.gguf",
    "b.onnx",
    "c.safetensors",
    "genai/genai_config.json",
    "checkpoint/config.json",
    "checkpoint/model.safetensors.index.json",
    "openvino/openvino_model.xml",
    "openvino/openvino_tokenizer.xml",
    "song/model_index.json",
    "card/README.md",
)


def pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def machine(folder: Path) -> Path:
    """A machine with one card whose driver's files, and whose tool, never answer."""
    card = folder / "sys/bus/pci/devices/0000:01:00.0"
    for name, text in (("class", "0x030000"), ("vendor", "0x10de"), ("device", "0x2684"), ("revision", "0xa1")):
        card.mkdir(parents=True, exist_ok=True)
        (card / name).write_text(text)
    (card / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
    pipe(card / "mem_info_vram_total")
    pipe(folder / "proc/driver/nvidia/gpus/0000:01:00.0/information")
    tool = folder / "usr/bin/nvidia-smi"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\nexec sleep 3600\n")
    tool.chmod(0o755)
    (folder / "probes-hang").touch()
    return folder


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with all of these faults."""
    home = tmp_path_factory.mktemp("silent")
    data, dead, pipes = home / "data", home / DEAD, home / "pipes"
    for name in PIPES:
        pipe(pipes / name)
    dead.mkdir()
    (dead / "model.gguf").write_bytes(b"GGUF")
    config = home / "config.yaml"
    settings = {
        "model_folders": [str(dead), str(pipes)],
        "models": {"dead": {"path": str(dead / "model.gguf")}},
        "storage": {"data_dir": str(data)},
    }
    config.write_text(json.dumps(settings))
    log = home / "log"
    flags = ["serve", "--config", str(config), "--port", "0"]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.silent_server", str(machine(home / "root")), *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout
    with process.stdout:
        line = process.stdout.readline()
    assert " listening on " in line, log.read_text()
    running = Server(process, line.split()[-1], data, log)
    yield running
    began = time.monotonic()
    running.stop()  # while a survey, the probes and reads of model folders are blocked
    assert time.monotonic() - began < LIMIT_S and process.returncode == 0


def get(server: Server, path: str) -> dict[str, Any]:
    began = time.monotonic()
    answer: dict[str, Any] = server.http.get(path).json()
    assert time.monotonic() - began < LIMIT_S, f"{path} took too long"
    return answer


def test_all_lists_come(silent: Server) -> None:
    devices, models = get(silent, "/api/devices"), get(silent, "/api/models")
    assert devices["probing"] and [device["id"] for device in devices["devices"]] == ["cpu"]
    state = {model["id"]: model for model in models["models"]}
    assert state["dead"]["state"] == "broken" and "no answer within" in state["dead"]["reason"]
    assert "mount" in state["dead"]["remedy"]
    assert {state[id_]["state"] for id_ in ("a", "b", "genai", "openvino", "song") if id_ in state} == {"broken"}
    assert get(silent, "/v1/models")["object"] == "list"
    problems = get(silent, "/api/health")["problems"]
    assert [one["code"] for one in problems if DEAD in str(one["detail"])] == ["model_folder_silent"]


def test_the_card_is_listed_with_the_reason(silent: Server) -> None:
    def look() -> dict[str, Any] | None:
        hardware = get(silent, "/api/devices")["hardware"]
        return next((item for item in hardware if item["id"] == CARD), None)

    card = wait_for(look, 15)
    assert "does not answer" in card["reason"] and "dmesg" in card["remedy"] and card["memory_bytes"] is None


@pytest.mark.parametrize("path", ["/api/generate", "/api/models/dead/load"])
def test_a_job_with_a_model_that_does_not_answer_ends_with_the_reason(silent: Server, path: str) -> None:
    began = time.monotonic()
    answer = silent.http.post(path, json={"model": "dead", "prompt": "x"} if "generate" in path else {}).json()
    assert time.monotonic() - began < LIMIT_S
    assert answer["code"] == "model_broken" and "no answer" in answer["detail"] and "mount" in answer["remedy"]


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_in_a_model_folder_is_never_opened(name: str, tmp_path: Path) -> None:
    pipe(tmp_path / "models" / name)
    catalogue = Catalogue(load_settings({"storage.data_dir": str(tmp_path)}, {}, tmp_path))
    began = time.monotonic()
    own = [model for model in catalogue.models() if str(tmp_path) in str(model.source)]
    assert time.monotonic() - began < LIMIT_S
    assert not [path for path in paths_without_answer() if path.is_relative_to(tmp_path)]
    assert {model.state for model in own if Path(str(model.source)).name == name.partition("/")[0]} <= {"broken"}


def test_a_pipe_as_the_list_of_added_models_is_an_error_not_a_wait(tmp_path: Path) -> None:
    catalogue = Catalogue(load_settings({"storage.data_dir": str(tmp_path)}, {}, tmp_path))
    pipe(catalogue.added.file)
    with pytest.raises(Exception, match="damaged"):
        Catalogue(load_settings({"storage.data_dir": str(tmp_path)}, {}, tmp_path)).models()


def test_the_inventory_has_the_other_cards_of_a_silent_one(tmp_path: Path) -> None:
    fields = {
        "pci": [
            "0000:03:00.0 030000 1002:744c c8 driver=amdgpu render=renderD128 mem_info_vram_total=25753026560",
            "0000:04:00.0 030000 1002:744c c8 driver=amdgpu render=renderD129",
        ]
    }
    host(fields, tmp_path)
    os.mkfifo(tmp_path / "sys/bus/pci/devices/0000:04:00.0/mem_info_vram_total")
    found = {item.id: item for item in steps({}, tmp_path)[-1]}
    assert found["pci:0000:03:00.0"].reason is None and found["pci:0000:03:00.0"].memory_bytes == 25753026560
    assert "did not return" in str(found["pci:0000:04:00.0"].reason)


@pytest.mark.parametrize("blocked", ["the loop", "a thread of the executor"])
def test_a_signal_ends_a_process_in_which_a_read_never_returns(blocked: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    waits = "open(path)" if blocked == "the loop" else "await asyncio.to_thread(open, path)"
    code = f"""
import asyncio, signal, sys
from backend.server.stop_watchdog import StopWatchdog
path = {str(tmp_path / "pipe")!r}
async def main():
    StopWatchdog(0.1)
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(task.cancel))
    print("ready", flush=True)
    {waits}
asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout
    with process.stdout:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_no_round_waits_for_a_child_that_cannot_end(tmp_path: Path) -> None:
    """The last frame of a survey is its end, although a thread of it is inside a driver."""
    from backend.child.handle import spawn
    from backend.scheduling.probing.inventory import query_hardware

    lists: list[int] = []
    found = asyncio.run(query_hardware(spawn, on_list=lambda items: lists.append(len(items))))
    assert found and lists and lists[-1] == len(found)
