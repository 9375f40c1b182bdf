"""The table of known errors: real messages lead to their meaning and remedy, other texts lead to none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.common.hardware.nvidia_errors import MEANINGS, tool_error
from backend.common.hardware.system_kind import System
from backend.common.installer_errors import Operation, diagnose
from backend.common.known_errors import remedy as remedies
from backend.common.known_errors.known_error import KnownError
from backend.common.known_errors.place import Installation, Place, installation_of
from backend.common.known_errors.table import KNOWN_ERRORS, Found, find, telling_line
from backend.scheduling.probing.failure_layers import cause_of
from tests.service import ROOT

MESSAGES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/samples/messages.yaml").read_text(encoding="utf-8"))
OF_LIBRARIES = [message for message in MESSAGES if "table" not in message]
OF_INSTALLERS = [message for message in MESSAGES if message.get("table") == "installer"]
SYSTEMS: tuple[System, ...] = ("container", "wsl", "win32", "darwin", "linux")
INSTALLATIONS: tuple[Installation, ...] = ("launcher", "package", "image", "made", "own")
HERE = Place("linux", "own", "torch", "/opt/env/bin/python", "torch")
NEUTRAL = [
    "",
    "loaded 8 layers",
    "memory: 24 GB",
    "the device is ready",
    "KeyError: 'memory'",
    "ValueError: invalid literal for int() with base 10: 'x'",
    "AssertionError: 3 != 4",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "IndexError: list index out of range",
    "Using device: cuda:0",
    "ggml_cuda_init: found 1 CUDA devices:",
    "Warning: the model was trained with another tokenizer",
    "[E:onnxruntime] Non-zero status code returned while running Reshape node.",
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "ZeroDivisionError: division by zero",
    "loading kernels from the cache",
    "Traceback (most recent call last):",
    "torch was built without this processor",
    "the answer is 42",
    "RuntimeError: Expected all tensors to be on the same device",
    "StopIteration",
]


@pytest.fixture(autouse=True)
def no_loader_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "HSA_OVERRIDE_GFX_VERSION", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("message", OF_LIBRARIES, ids=lambda message: f"{message['meaning']}-{message['text'][:40]}")
def test_a_real_message_leads_to_its_meaning_and_remedy(message: dict[str, Any]) -> None:
    found = find(message["text"])
    assert found and found.error.name == message["meaning"], found
    remedy = remedies.remedy_for(found, replace(HERE, system=message.get("system", "linux")))
    assert message["remedy"] in remedy, remedy


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RuntimeError: CUDA error: unknown error", "cuda-unknown"),
        ("Error 304: OS call failed or operation not supported on this OS", "cuda-unknown"),
        ("RuntimeError: CUDA error: invalid device ordinal", "no-cuda-device"),
        ("Error 36: API call is not supported in the installed CUDA driver", "driver-too-old"),
        ("CUDA error: hardware stack error", "device-fault"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", "device-fault"),
        ("Failed to initialize NVML: Driver Not Loaded", "module-not-loaded"),
        ("cuDNN error: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", "cudnn-mixed"),
        ("RuntimeError: Numpy is not available", "numpy-abi"),
        ("ImportError: /opt/x.so: cannot change memory protections", "selinux-relocation"),
        ("EOFError: marshal data too short", "library-damaged"),
        ("ValueError: source code string cannot contain null bytes", "library-damaged"),
        ("ImportError: Module use of python310.dll conflicts with this version of Python.", "undefined-symbol"),
        ("Intel MKL FATAL ERROR: Cannot load libmkl_avx2.so or libmkl_def.so.", "undefined-symbol"),
        ("while importing torch: it exited with code 0xc0000135 (a library is missing)", "dll-dependency"),
        ("vk::PhysicalDevice::createDevice: ErrorInitializationFailed", "vulkan-driver"),
        ("[GPU] clFlush, error code: -5 CL_OUT_OF_RESOURCES", "xpu-memory"),
        ("ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS", "level-zero"),
        ("OSError: [Errno 116] Stale file handle", "storage-gone"),
        ("OSError: [WinError 225] Operation did not complete successfully", "blocked-by-policy"),
    ],
)
def test_other_forms_of_known_messages_lead_to_the_same_meaning(text: str, name: str) -> None:
    found = find(text)
    assert found and found.error.name == name, found


@pytest.mark.parametrize("message", OF_INSTALLERS, ids=lambda message: f"{message['meaning']}-{message['text'][:40]}")
def test_a_real_message_of_pip_or_uv_leads_to_its_kind(message: dict[str, Any]) -> None:
    assert diagnose(message["text"], Operation(again="start again")).kind == message["meaning"]


@pytest.mark.parametrize("text", NEUTRAL)
def test_other_texts_lead_to_no_meaning_but_to_a_report(text: str) -> None:
    assert find(text) is None
    cause = cause_of(text, "computation", place=HERE)
    assert "doctor --bundle" in cause.remedy and "driver" not in cause.remedy


def test_there_are_150_messages_and_each_names_a_public_thread_once() -> None:
    assert len(MESSAGES) >= 150 and len({message["text"] for message in MESSAGES}) == len(MESSAGES)
    assert all(re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+", m["url"]) for m in MESSAGES)


def test_names_are_unique_and_each_source_is_a_thread_of_its_messages() -> None:
    assert len({error.name for error in KNOWN_ERRORS}) == len(KNOWN_ERRORS)
    threads: dict[str, set[str]] = {}
    for message in OF_LIBRARIES:
        threads.setdefault(message["meaning"], set()).add(message["url"])
    assert threads.keys() <= {error.name for error in KNOWN_ERRORS}
    for error in KNOWN_ERRORS:
        assert not (error.name in threads and not error.source), f"{error.name} has messages but no source"


def sample(error: KnownError) -> Found:
    """Return the error as a real message shows it, or without a text for one of Touchstone's own."""
    texts = (message["text"] for message in OF_LIBRARIES if message["meaning"] == error.name)
    empty = re.match("", "")
    assert empty
    return next(filter(None, map(find, texts)), Found(error, empty))


@pytest.mark.parametrize("error", KNOWN_ERRORS, ids=lambda error: error.name)
def test_every_remedy_is_complete_on_each_system_and_installation(error: KnownError) -> None:
    for system in SYSTEMS:
        for installation in INSTALLATIONS:
            text = remedies.remedy_for(sample(error), replace(HERE, system=system, installation=installation))
            assert text.endswith(".") and not re.search(r"\.\.(?![./])", text) and "{" not in text, text
            assert text[0].isupper() or text.startswith(("/", "lib")), text


@pytest.mark.parametrize(
    ("runtime", "python", "expected"),
    [
        ("torch", "/home/x/data/runtimes/torch/2.9-1/bin/python", "made"),
        ("torch", "/home/x/env/bin/python", "own"),
        ("torch", "/srv/runtimes/other/bin/python", "own"),
        ("base", str(ROOT / ".venv" / "bin" / "python"), "launcher"),
    ],
)
def test_the_way_of_installation_is_read_from_the_interpreter_s_path(
    runtime: str, python: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.common.known_errors.place.this_system", lambda: "linux")
    assert installation_of(runtime, python) == expected


def test_each_way_of_installation_has_its_own_command() -> None:
    texts = {
        installation: remedies.reinstall(replace(HERE, installation=installation)) for installation in INSTALLATIONS
    }
    assert "runtimes remove torch" in texts["made"] and "runtimes install torch" in texts["made"]
    assert "/opt/env/bin/python -m pip install --force-reinstall torch" in texts["own"]
    assert ".venv" in texts["launcher"] and "image" in texts["image"] and len(set(texts.values())) == 5


def old_library(file: str) -> str:
    return f"ImportError: {file}: version `GLIBCXX_3.4.32' not found (required by /opt/env/lib/torch/lib/libtorch.so)"


def test_a_library_that_a_variable_chose_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{tmp_path}/old/")
    remedy = cause_of(old_library(f"{tmp_path}/old/libstdc++.so.6"), place=HERE).remedy
    assert f"Remove {tmp_path}/old/ from LD_LIBRARY_PATH" in remedy and "GLIBCXX_3.4.32" in remedy
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/lib")
    monkeypatch.setenv("LD_PRELOAD", f"{tmp_path}/old/libstdc++.so.6")
    assert "from LD_PRELOAD" in cause_of(old_library(f"{tmp_path}/old/libstdc++.so.6"), place=HERE).remedy


def test_a_library_of_the_system_or_the_environment_is_named_as_such() -> None:
    assert (
        "the system's libstdc++.so.6"
        in cause_of(old_library("/lib/x86_64-linux-gnu/libstdc++.so.6"), place=HERE).remedy
    )
    assert "The environment's own" in cause_of(old_library("/opt/env/lib/libstdc++.so.6"), place=HERE).remedy
    assert "Unset LD_LIBRARY_PATH" in cause_of(old_library("/opt/gcc-4/lib/libstdc++.so.6"), place=HERE).remedy


def test_the_missing_instruction_sets_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "while importing torch: it was killed by SIGILL"
    monkeypatch.setattr(remedies, "_processor_flags", lambda: {"sse2", "avx", "f16c", "fma", "bmi2", "avx2"})
    assert "it has no AVX-512" in cause_of(text, place=HERE).remedy
    monkeypatch.setattr(remedies, "_processor_flags", lambda: {"sse2"})
    assert "it has no AVX, F16C, FMA, BMI2, AVX2, AVX-512" in cause_of(text, place=HERE).remedy


def test_the_telling_line_is_the_first_that_matches_wherever_it_is() -> None:
    nvml = ["Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 550.54"]
    assert telling_line(nvml) == nvml[0]
    numpy = [
        "",
        "A module that was compiled using NumPy 1.x cannot be run in",
        "NumPy 2.0.2 as it may crash.",
        "Traceback",
    ]
    assert (
        telling_line(numpy)
        == "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.2 as it may crash."
    )
    assert telling_line(["all is well", "the answer is 42"]) is None


OF_TOOL = {
    "Failed to initialize NVML: Driver/library version mismatch": "driver-mismatch",
    "Failed to initialize NVML: Unknown Error": "nvml-unknown",
    "Failed to initialize NVML: GPU access blocked by the operating system": "windows-blocks-card",
    "Failed to initialize NVML: Driver Not Loaded": "module-not-loaded",
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.": "nvml-missing",
    "Failed to initialize NVML: Insufficient Permissions": "nvml-denied",
    "No devices were found": "driver-lists-no-card",
    "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error": "gpu-lost",
    "00000000:01:00.0, [GPU requires reset], [GPU requires reset], N/A, 550.54.14, N/A": "gpu-reset-required",
    "00000000:01:00.0, ERR!, ERR!, ERR!, 550.54.14, ERR!": "gpu-silent",
    "The GPU's external power cables are not properly attached": "power-cable",
}


@pytest.mark.parametrize(("text", "name"), OF_TOOL.items(), ids=OF_TOOL.values())
def test_a_failure_of_nvidia_s_tool_is_an_entry_of_the_table(text: str, name: str) -> None:
    found, error = find(text), tool_error(text)
    assert found and error and found.error is error.known and error.known.name == name
    assert all("{" not in error.known.remedy_on(system) for system in SYSTEMS), "the inventory has no interpreter"


def test_each_entry_with_a_meaning_for_the_tool_exists_and_is_tested() -> None:
    assert set(MEANINGS) == set(OF_TOOL.values()) <= {error.name for error in KNOWN_ERRORS}
