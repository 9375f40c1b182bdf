"""The fakes of libraries have no name that the real packages lack."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_stacks import read_signatures
from tests.faulty_stacks.environments import make

SIGNATURES = Path(__file__).parent / "faulty_stacks" / "signatures"
# What a stand-in defines itself, by place: functions of its modules, and methods of its classes.
LISTED = """
import importlib, inspect, json, sys
module, found = importlib.import_module(sys.argv[1]), {}
if sys.argv[1] == "tokenizers":
    importlib.import_module("tokenizers.decoders")
if sys.argv[1] == "openvino":
    importlib.import_module("openvino.opset13"), importlib.import_module("openvino._offline_transformations")
for place in sys.argv[2:]:
    here = module
    for part in filter(None, place.split(".")):
        here = getattr(here, part)
    owners = here.__mro__[:-1] if inspect.isclass(here) else [here]
    for name, value in [item for owner in owners for item in vars(owner).items()]:
        own = inspect.isclass(here) or getattr(value, "__module__", None) == getattr(here, "__name__", "")
        if own and inspect.isfunction(value) and not name.startswith("_"):
            found[".".join(filter(None, (place, name)))] = list(inspect.signature(value).parameters)
print(json.dumps(found))
"""
PLACES = {
    "torch": ("", "cuda", "xpu", "backends.mps", "nn.functional", "Tensor", "device"),
    "torch_directml": ("",),
    "transformers": read_signatures.PLACES["transformers"],
    "tokenizers": ("Tokenizer", "decoders.DecodeStream"),
    "openvino": read_signatures.PLACES["openvino"],
}


def offered(python: Path, package: str) -> dict[str, list[str]]:
    """What the stand-in offers, by name, with its parameters."""
    command = [str(python), "-I", "-c", LISTED, package, *PLACES[package]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("package", "least"),
    [("torch", 50), ("torch_directml", 5), ("transformers", 8), ("tokenizers", 6), ("openvino", 22)],
)
def test_a_stand_in_has_only_what_the_real_package_has(package: str, least: int, tmp_path: Path) -> None:
    python = make(
        tmp_path / "env", {"adapters": []}, ("torch", "torch_directml", "transformers", "tokenizers", "openvino")
    )
    real: dict[str, Any] = json.loads((SIGNATURES / f"{package}.json").read_text())
    found = offered(python, package)
    assert len(found) >= least and real["version"]
    for name, parameters in found.items():
        assert name in real["names"], f"{package} {real['version']} has no {name}"
        known = real["names"][name]
        if known and "args" not in known and "kwargs" not in known:
            own = [parameter for parameter in parameters if parameter != "self"]
            assert set(own) <= set(known), f"{name}{tuple(own)} is {name}{tuple(known)} in {package} {real['version']}"


def test_the_check_can_fail(tmp_path: Path) -> None:
    python = make(tmp_path / "env", {})
    more = next((tmp_path / "env").rglob("torch/xpu.py"))
    more.write_text(more.read_text() + "\n\ndef is_the_best() -> bool:\n    return True\n")
    real = json.loads((SIGNATURES / "torch.json").read_text())
    assert set(offered(python, "torch")) - set(real["names"]) == {"xpu.is_the_best"}


def test_what_is_called_of_onnx_runtime_is_in_the_version_that_was_read() -> None:
    """Its providers' packages have the same calls: read in onnxruntime-directml 1.24.4 and -migraphx 1.27.1 as well."""
    real = json.loads((SIGNATURES / "onnxruntime.json").read_text())
    called = {
        "get_ep_devices",
        "get_available_providers",
        "register_execution_provider_library",
        "preload_dlls",
        "SessionOptions.add_provider_for_devices",
        "SessionOptions.add_session_config_entry",
        "InferenceSession.run",
        "InferenceSession.end_profiling",
        "InferenceSession.get_provider_graph_assignment_info",
        "OrtEpAssignedSubgraph.ep_name",
        "OrtEpAssignedSubgraph.get_nodes",
        "OrtEpDevice.device",
        "OrtEpDevice.ep_metadata",
        "OrtEpDevice.ep_name",
        "OrtHardwareDevice.metadata",
        "OrtHardwareDevice.type",
    }
    assert called <= set(real["names"]), called - set(real["names"])
