"""A device other than the CPU: ONNX Runtime's WebGPU provider on a software Vulkan from Chromium.

The provider wants a card in /sys/class/drm, where a machine without one has nothing: the server runs in a mount
namespace of its own whose /sys/class shows one, which only root may make.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tests.service import Server, furnished, start_server

DRIVER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
CARD = """
mount -t tmpfs none /sys/class && mkdir -p /sys/class/drm/card0/device && cd /sys/class/drm/card0/device &&
echo 0x0005 > vendor && echo 0x0 > device && echo 0x030000 > class && cd "$OLDPWD" && exec "$@"
"""
IN_NAMESPACE = ("unshare", "--mount", "bash", "-c", CARD, "_")


def missing() -> str | None:
    """What this machine lacks for it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can show the provider a card that is not there"
    if not DRIVER.exists():
        return f"no software Vulkan at {DRIVER} (Debian's chromium-common has it)"
    tried = subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, text=True)
    return f"no mount namespace can be made here: {tried.stderr.strip()}" if tried.returncode else None


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[Server]:
    """A server on a machine that has nothing but a software Vulkan; all its devices are proved."""
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("emulated")
    loader = {} if ctypes.util.find_library("vulkan") else {"LD_LIBRARY_PATH": str(DRIVER.parent)}
    environ = {
        "VK_DRIVER_FILES": str(DRIVER),
        "VK_ICD_FILENAMES": str(DRIVER),
        "XDG_RUNTIME_DIR": str(folder),
        "TOUCHSTONE_SUPERVISION__STEP_S": "300",  # software compiles shaders slowly
        **loader,
    }
    server = start_server(furnished(folder / "data", model_file), environ=environ, under=IN_NAMESPACE)
    server.http.get("/api/devices", params={"wait_s": 120})
    yield server
    assert server.stop() == 0


@pytest.fixture
def webgpu(emulated: Server) -> dict[str, Any]:
    devices = emulated.http.get("/api/devices").json()["devices"]
    return next(device for device in devices if device["id"] == "onnx-webgpu:0")


def test_it_is_ready_since_it_computed_and_every_node_ran_there(webgpu: dict[str, Any]) -> None:
    assert (webgpu["state"], webgpu["stage"], webgpu["reason"]) == ("ready", "measured", None)
    proof = webgpu["proof"]
    assert 0 < proof["max_abs_error"] <= proof["tolerance"] < 0.2
    done = {(check["operation"], check["dtype"]) for check in proof["checks"] if "skipped" not in check}
    assert {("MatMul", "float32"), ("Conv", "float32"), ("Softmax", "float32"), ("Gather", "float32")} <= done
    assert "nodes on WebGpuExecutionProvider" in proof["evidence"]
    assert proof["gflops"] > 0


def test_it_is_called_what_it_is(webgpu: dict[str, Any], emulated: Server) -> None:
    assert webgpu["kind"] == "emulated" and "SwiftShader" in webgpu["name"]
    assert webgpu["hardware_id"] == "cpu:0", "it computes on the processor, so it takes the processor's lane"
    assert "slower than the processor" in webgpu["note"]
    hardware = emulated.http.get("/api/devices").json()["hardware"]
    processor = next(item for item in hardware if item["id"] == "cpu:0")
    assert {"cpu", "onnx-webgpu:0"} <= set(processor["devices"])


def test_nobody_gets_it_who_does_not_ask_for_it(emulated: Server) -> None:
    assert emulated.http.get("/api/devices").json()["default"] == "cpu"
    body = {"prompt": "Say hello.", "options": {"max_tokens": 2}, "device": "gpu", "fallback": "never"}
    refused(emulated.http.post("/api/generate", json=body), 409, "device_not_ready")
    assert emulated.http.get("/api/health").json()["status"] == "ok"


def test_a_tune_is_composed_there_with_every_node(emulated: Server) -> None:
    body = {"task": "music", "device": "onnx-webgpu:0", "fallback": "never"}
    options = {"form": "march", "bars": 1, "backing": "none", "seed": 1}
    answer = emulated.http.post("/api/generate", json={**body, "options": options}, timeout=300)
    assert answer.status_code == 200, answer.text
    receipt = answer.json()["receipt"]
    assert (receipt["used"], receipt["fell_back"], receipt["placement"]["on_device"]) == ("onnx-webgpu:0", False, 1.0)
    assert "nodes on WebGpuExecutionProvider" in receipt["placement"]["evidence"]
    assert "its logits were within" in receipt["placement"]["evidence"]
    assert receipt["model_file"] == "step-device-fp32.onnx", "keys and values stay in its own memory"
    assert receipt["counts"]["bars"] == 1 and receipt["counts"]["notes"] >= 1


def test_variations_are_shared_with_the_processor_whose_lane_it_takes(emulated: Server) -> None:
    body = {"task": "music", "devices": ["cpu", "onnx-webgpu:0"], "spread": "parallel", "fallback": "never"}
    options = {"form": "march", "bars": 1, "backing": "none", "seed": 1, "variations": 2}
    answer = emulated.http.post("/api/generate", json={**body, "options": options}, timeout=300)
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["receipt"]["used"], job["receipt"]["fell_back"]) == ("cpu, onnx-webgpu:0", False)
    assert {"tune-1.abc", "tune-2.abc"} <= {artifact["name"] for artifact in job["output"]["artifacts"]}
    first, second = sorted(job["receipt"]["attempts"], key=lambda attempt: attempt["started_at"])
    assert first["ended_at"] <= second["started_at"], "one hardware computes one job at a time"
    alone = emulated.generate(task="music", device="cpu", options={**options, "variations": 2})
    tunes = [emulated.http.get(f"/api/jobs/{one}/artifacts/tune-2.abc").text for one in (job["id"], alone["id"])]
    assert tunes[0] == tunes[1], "a seed's tune is the same wherever it is made"
