"""Names of devices: ids, aliases of other tools, `auto`, and errors that list the valid names."""

from __future__ import annotations

import pytest

from backend.common.errors import UnknownDevice, Validation
from backend.common.types import Device, Hardware
from backend.devices import INDEX_LIMIT, backends
from backend.runtimes.recipes import recipes
from backend.scheduling.device_resolution import Resolution, resolve, unreachable


def device(id_: str, kind: str = "gpu", state: str = "ready") -> Device:
    return Device(id_, id_, id_.partition(":")[0], kind, state, tasks=["text"])  # type: ignore[arg-type]


CPU = device("cpu", "cpu")


def ask(word: str, *devices: Device, vendors: str = "", task: str = "text", engine: str | None = None) -> Resolution:
    hardware = [Hardware(vendor, vendor, vendor, "gpu") for vendor in vendors.split()]
    return resolve(word, {d.id: d for d in (CPU, *devices)}, hardware, task=task, engine=engine)


@pytest.mark.parametrize(
    ("word", "resolved"),
    [
        *[(word, "cpu") for word in ("cpu", "CPU", "cpu:0", " cpu ", "auto", "AUTO")],
        *[(word, "cuda:0") for word in ("cuda", "CUDA:0", "cuda:0")],
        ("cuda:63", "cuda:63"),
        *[(word, "directml:0") for word in ("dml", "DML:0", "directml")],
        ("dml:2", "directml:2"),
        *[(word, "onnx-directml:0") for word in ("onnx_dml", "DmlExecutionProvider", "dmlexecutionprovider")],
        ("onnx_dml:1", "onnx-directml:1"),
        ("DirectMLExecutionProvider", "onnx-directml:0"),
        ("tensorrt", "onnx-tensorrt:0"),
        ("TensorRTExecutionProvider", "onnx-tensorrt:0"),
        ("coreml", "onnx-coreml"),
        ("openvino", "onnx-openvino:0"),
        ("vitisai", "onnx-vitisai"),
        ("qnn", "onnx-qnn"),
        ("webgpu", "onnx-webgpu:0"),
        ("migraphx", "onnx-migraphx:0"),
        ("CUDAExecutionProvider", "onnx-cuda:0"),
        ("mps", "mps"),
        ("gpu", None),
        ("npu", None),
    ],
)
def test_a_word_means_a_device(word: str, resolved: str | None) -> None:
    answer = ask(word)
    assert answer.resolved == resolved
    assert answer.reason.endswith(".")


@pytest.mark.parametrize(
    "word",
    [
        "",
        "cuda:",
        "cuda:64",
        "cuda:-1",
        "cuda:00",
        "cuda:1:2",
        "cuda:0x1",
        "gpu:0",
        "nvidia",
        "cpu:64",
        "auto:0",
        "a" * 5000,
        "☃",
    ],
)
def test_other_words_are_refused_with_the_valid_ids(word: str) -> None:
    with pytest.raises(UnknownDevice) as caught:
        ask(word, device("cuda:0"))
    assert caught.value.extra["valid"] == ["auto", "cpu", "cuda:0"]
    assert len(caught.value.detail) < 300


def test_every_backend_s_own_name_is_known_with_each_index() -> None:
    for backend in backends().values():
        assert ask(backend.name).resolved in (backend.name, f"{backend.name}:0")
        for index in (0, 7, INDEX_LIMIT - 1):
            resolved = ask(f"{backend.name}:{index}").resolved
            assert resolved and unreachable(resolved, backend).reason


def test_no_alias_means_two_things() -> None:
    meanings: dict[str, set[str]] = {}
    for backend in backends().values():
        for alias in (backend.name, *backend.aliases, *(alias for alias, _, _ in backend.engine_aliases)):
            meanings.setdefault(alias.lower(), set()).add(backend.name)
    assert not [alias for alias, names in meanings.items() if len(names) > 1]


def test_gpu_prefers_a_card_to_an_integrated_one_and_never_takes_an_emulated_one() -> None:
    integrated, card = device("cuda:0", "integrated"), device("vulkan:0", "gpu")
    assert ask("gpu", integrated, card).resolved == "vulkan:0"
    assert ask("gpu", integrated).resolved == "cuda:0"
    assert ask("gpu", device("vulkan:0", "emulated")).resolved is None
    assert ask("auto", device("vulkan:0", "emulated")).resolved == "cpu"


def test_auto_takes_the_first_ready_device_in_the_documented_order() -> None:
    names = ("vulkan:0", "cuda:0", "rocm:0", "onnx-tensorrt:0", "directml:0")
    assert ask("auto", *(device(name) for name in names)).resolved == "cuda:0"
    assert ask("auto", device("cuda:0", state="broken"), device("directml:0")).resolved == "directml:0"


def test_a_bare_backend_is_its_best_ready_index() -> None:
    assert ask("cuda", device("cuda:0", state="broken"), device("cuda:1")).resolved == "cuda:1"


def test_cuda_means_rocm_where_the_machine_has_amd_alone() -> None:
    answer = ask("cuda:1", vendors="AMD")
    assert answer.resolved == "rocm:1" and "ROCm" in answer.reason
    assert ask("cuda:1", vendors="AMD NVIDIA").resolved == "cuda:1"


def test_an_alias_of_an_engine_sets_it_and_refuses_another() -> None:
    assert ask("onnx") == Resolution("cpu", "'onnx' is another name for cpu with the engine onnx-genai.", "onnx-genai")
    assert ask("onnx", task="music").engine == "onnxruntime"
    assert ask("onnx", engine="onnx-genai").engine == "onnx-genai"
    with pytest.raises(Validation, match="llama.cpp"):
        ask("onnx", engine="llama.cpp")


def test_a_provider_that_ended_names_its_successor() -> None:
    device = unreachable("onnx-rocm:0", backends()["onnx-rocm"])
    assert device.state == "unavailable" and "no longer developed" in str(device.reason)
    assert device.remedy and "runtimes install onnx-migraphx" in device.remedy
    replaced = {name: facts.successor for name, facts in backends().items() if facts.successor}
    assert all(backends()[name].runtimes and name not in recipes() for name in replaced)
    assert set(replaced.values()) <= set(recipes())
