"""Probe results: from a child's frames and exit to a device's state, reason, remedy and failed layer."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.device_api import DetectedDevice
from backend.common.types import Device, DeviceState, Hardware, Proof
from backend.devices import INDEX_LIMIT, backends
from backend.engines import engines
from backend.scheduling.probing.classification import proved, refused, undescribed, unproved
from backend.scheduling.probing.device_merge import Numbering, merged, on_hardware
from backend.scheduling.probing.failure_layers import cause_of
from backend.scheduling.probing.prober import Outcome
from backend.scheduling.probing.proof_cache import ProofCache

PROOF = Proof("matmul", "float32", 0.0, 1e-3, 0.2, {"torch": "2.1"}, "2026-01-01T00:00:00.000Z", 7)
CARD = DetectedDevice("A card", "gpu", "pci:0000:01:00.0", 8_000, 6_000, identity={"pci": "0000:01:00.0"})


def step(what: str, *backends_: str) -> dict[str, Any]:
    return {"op": "step", "what": what, "backends": list(backends_ or ("cuda",))}


def frame(op: str, detail: str = "", backend: str = "cuda", **more: Any) -> dict[str, Any]:
    return {"op": op, "detail": detail, "backends": [backend], **more}


def fresh(runtime: str = "torch", backend: str = "cuda") -> Device:
    return unproved(f"{backend}:0", backends()[backend], runtime, CARD)


def test_a_device_that_is_not_checked_yet_shows_what_its_runtime_lists() -> None:
    device = fresh()
    assert (device.state, device.stage, device.name) == ("probing", "visible", "A card")
    assert (device.memory_bytes, device.hardware_id) == (8_000, "pci:0000:01:00.0")
    listed_by_nobody = unproved("cuda:0", backends()["cuda"], "torch")
    assert (listed_by_nobody.stage, listed_by_nobody.memory_bytes) == ("none", None)


REFUSALS: list[tuple[str, list[dict[str, Any]], str | None, DeviceState, str, str]] = [
    ("wrong numbers", [step("computing"), frame("wrong", "off by 3")], None, "broken", "computation", "off by 3"),
    ("no such device", [frame("absent", "only 1 listed")], None, "unavailable", "driver", "No such device: only 1"),
    ("absent in a sentence", [frame("absent", "The card is gone.")], None, "unavailable", "driver", "The card is gone"),
    (
        "a package that does not import",
        [step("importing torch"), frame("missing", "libfoo.so.1: undefined symbol: bar")],
        None,
        "unavailable",
        "library load",
        "importing torch",
    ),
    (
        "a package that is not there",
        [step("importing torch"), frame("missing", "No module named 'torch'")],
        None,
        "unavailable",
        "runtime package",
        "do not load",
    ),
    (
        "a failed computation",
        [step("listing"), step("computing"), frame("failed", "bad launch")],
        None,
        "broken",
        "computation",
        "while computing: bad launch",
    ),
    (
        "a failed list",
        [step("listing devices"), frame("failed", "x")],
        None,
        "broken",
        "driver",
        "while listing devices",
    ),
    (
        "a permission",
        [step("computing"), frame("failed", "open /dev/kfd: Permission denied")],
        None,
        "unavailable",
        "permission",
        "/dev/kfd",
    ),
    ("a crash", [step("loading the library")], "it was ended by SIGSEGV", "broken", "library load", "SIGSEGV"),
    ("a crash before any step", [], "exit code 3", "broken", "runtime package", "while starting: exit code 3"),
    ("no answer", [step("computing")], None, "broken", "computation", "without an answer"),
    (
        "the frame of another backend",
        [step("computing"), frame("wrong", "off", "vulkan")],
        "it hung",
        "broken",
        "computation",
        "it hung",
    ),
]


@pytest.mark.parametrize(
    ("frames", "trouble", "state", "layer", "words"),
    [each[1:] for each in REFUSALS],
    ids=[each[0] for each in REFUSALS],
)
def test_a_failed_check_names_the_state_the_layer_and_the_step(
    frames: list[dict[str, Any]], trouble: str | None, state: DeviceState, layer: str, words: str
) -> None:
    device = refused(fresh(), Outcome(frames, trouble))
    assert (device.state, device.layer) == (state, layer)
    assert device.reason and words in device.reason and device.reason.endswith(".") and not device.reason.endswith("..")
    assert device.remedy and device.proof is None


def test_a_device_that_was_visible_keeps_that_stage_and_an_unlisted_one_has_its_library_installed() -> None:
    gone = Outcome([frame("absent", "it is gone")])
    assert refused(fresh(), gone).stage == "visible"
    assert refused(replace(fresh(), stage="none"), gone).stage == "installed"
    broken = Outcome([step("importing torch"), frame("missing", "no")])
    assert refused(fresh(), broken).stage == "none"


def test_the_remedy_of_a_device_without_a_description_fits_its_interpreter() -> None:
    fault = "RuntimeError: CUDA error: unspecified launch failure"
    steps = [step("importing torch"), step("listing devices"), step("importing openvino", "openvino")]
    made = undescribed(fresh(), fault, Outcome(steps, python="/home/x/data/runtimes/torch/2.9-1/bin/python"))
    assert (made.state, made.stage, made.layer) == ("broken", "visible", "driver")
    assert "runtimes update torch" in str(made.remedy)
    own = undescribed(fresh(), fault, Outcome(steps, python="/opt/env/bin/python"))
    assert "/opt/env/bin/python -m pip install --upgrade torch" in str(own.remedy)


CAUSES = [
    ("EACCES on /dev/dri/renderD128", "permission", True),
    ("Failed to initialize NVML: Driver/library version mismatch", "driver", True),
    ("The NVIDIA driver on your system is too old", "driver", True),
    ("CUDA error: no kernel image is available for execution on the device", "runtime package", True),
    ("Found no NVIDIA driver on your system", "driver", True),
    ("vkCreateInstance failed", "driver", True),
    ("ImportError: DLL load failed while importing x", "library load", True),
    ("module 'onnxruntime' has no attribute 'InferenceSession'", "runtime package", True),
    ("[Errno 28] No space left on device", "library load", True),
    ("libcudart.so.12: cannot open shared object file: No such file or directory", "library load", True),
    ("/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found", "library load", True),
    ("CUDA out of memory. Tried to allocate 2 GiB", "computation", False),
    ("MemoryError", "computation", False),
    ("something else", "hardware", False),
]


@pytest.mark.parametrize(("text", "layer", "is_absent"), CAUSES)
def test_the_text_of_a_library_leads_to_the_layer_that_failed(text: str, layer: str, is_absent: bool) -> None:
    cause = cause_of(text, "hardware", "Look at it.")
    assert (cause.layer, cause.absent) == (layer, is_absent)
    assert (cause.remedy == "Look at it.") == (layer == "hardware")


def outcome(*frames: dict[str, Any], trouble: str | None = None, proof: Proof = PROOF) -> Outcome:
    return Outcome([{"op": "proved", "proof": vars(proof), "memory_free_bytes": 5_000}, *frames], trouble)


def test_a_proof_with_an_engine_makes_a_device_ready_for_the_tasks_of_that_engine() -> None:
    device = proved(fresh(), "torch", outcome({"op": "engines", "engines": {"transformers": {"transformers": "5"}}}))
    assert (device.state, device.reason, device.stage) == ("ready", None, "runs")
    assert device.engines == ["transformers"] and device.served_by == {"torch": ["transformers"]}
    assert set(device.tasks) == {"text", "lyrics"} and device.memory_free_bytes == 5_000
    assert device.versions == {"torch": "2.1", "transformers": "5"}


def test_a_measured_rate_is_a_further_stage() -> None:
    device = proved(fresh(), "torch", outcome(proof=replace(PROOF, gflops=12.0)))
    assert device.stage == "measured" and device.proof and device.proof.gflops == 12.0


def test_the_last_report_of_engines_counts_and_missing_ones_say_why() -> None:
    frames = (
        {"op": "engines", "engines": {}},
        {"op": "no_engine", "engine": "musicgen", "detail": "No module named 'x'."},
        {"op": "engines", "engines": {"transformers": {}}},
    )
    device = proved(fresh(), "torch", outcome(*frames, trouble="it hung."))
    assert device.state == "ready" and device.engines == ["transformers"]
    assert "No module named 'x')" in device.lacks["musicgen"] and "runtimes update torch" in device.lacks["musicgen"]
    assert "It was not checked in the runtime torch: it hung." in device.lacks["torch"]
    assert "transformers" not in device.lacks and "llama.cpp" not in device.lacks, "not an engine of that runtime"


@pytest.mark.parametrize(("runtime", "state"), [("base", "broken"), ("torch", "ready")])
def test_the_service_s_own_runtime_must_have_an_engine_and_another_one_need_not(runtime: str, state: str) -> None:
    missing = {"op": "no_engine", "engine": "llama.cpp", "detail": "No module named 'xllamacpp'"}
    device = proved(fresh(runtime, "vulkan"), runtime, outcome(missing))
    assert device.state == state and device.proof, "the device itself computes"
    assert (device.layer == "runtime package") == (state == "broken")


UNUSABLE = "bfloat16 results are wrong on this device (MatMul bfloat16 was off by up to 3 in 768 of 768 entries)"
FAILED_TYPE = {"operation": "MatMul", "dtype": "bfloat16", "failed": "MatMul bfloat16 was off"}
REFUSED_TYPE = {"op": "no_engine", "engine": "transformers", "detail": UNUSABLE, "data_type": "bfloat16"}


def of_types(*frames: dict[str, Any], row: dict[str, Any] | None = None) -> Outcome:
    """The frames of a device whose proof has an unusable data type."""
    proof = replace(PROOF, checks=[row or FAILED_TYPE], unusable={"bfloat16": UNUSABLE}, model_dtype="bfloat16")
    return Outcome([{"op": "proved", "proof": asdict(proof), "memory_free_bytes": 0}, *frames])


@pytest.mark.parametrize("runtime", ["torch", "my-own"])
def test_an_engine_whose_data_type_is_wrong_is_not_offered_and_the_others_are(runtime: str) -> None:
    device = proved(fresh(runtime), runtime, of_types(REFUSED_TYPE, {"op": "engines", "engines": {"torch": {}}}))
    assert (device.state, device.engines, device.memory_free_bytes) == ("ready", ["torch"], 0), (
        "no free memory is a fact"
    )
    assert device.lacks["transformers"].startswith(f"{UNUSABLE}: transformers computes in bfloat16. Update")
    unsupported = {"operation": "MatMul", "dtype": "bfloat16", "skipped": "not implemented"}
    device = proved(
        fresh(runtime), runtime, of_types(REFUSED_TYPE, {"op": "engines", "engines": {"torch": {}}}, row=unsupported)
    )
    assert "Use another engine or another device." in device.lacks["transformers"]


def test_a_device_whose_only_engines_need_a_wrong_data_type_is_broken() -> None:
    device = proved(fresh(), "torch", of_types(REFUSED_TYPE, {"op": "engines", "engines": {}}))
    assert (device.state, device.layer) == ("broken", "computation") and "transformers" in device.lacks
    assert device.reason == f"No engine can compute on this device: {UNUSABLE}." and "driver" in str(device.remedy)


def test_engines_need_the_data_type_that_models_compute_in() -> None:
    for backend, name, model_dtype, wrong, expected in (
        ("cuda", "transformers", "bfloat16", "bfloat16", "bfloat16"),
        ("cuda", "transformers", "float16", "bfloat16", None),
        ("cuda", "musicgen", "float16", "bfloat16", None),
        ("cpu", "musicgen", "float32", "bfloat16", "bfloat16"),
        ("cpu", "transformers", "float32", "bfloat16", None),
        ("cuda", "torch", "bfloat16", "bfloat16", None),
        ("cuda", "transformers", None, "bfloat16", None),
    ):
        proof = replace(PROOF, unusable={wrong: "wrong"}, model_dtype=model_dtype)
        assert engines()[name].unusable_type(backend, proof) == expected, (backend, name)


def test_a_result_without_a_proof_is_a_refusal() -> None:
    assert proved(fresh(), "torch", Outcome([step("computing"), frame("wrong", "off")])).state == "broken"


cards = st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(cards, st.randoms(use_true_random=False), st.integers(0, 7))
def test_a_card_keeps_its_index_whatever_order_a_runtime_lists(addresses: list[int], shuffle: Any, hidden: int) -> None:
    numbering = Numbering()
    listed = [_at(address, position) for position, address in enumerate(addresses)]
    indexes = {card.identity["pci"]: index for index, card in numbering.of("cuda", listed)}
    assert [address for address, _ in sorted(indexes.items(), key=lambda pair: pair[1])] == sorted(indexes)
    shuffle.shuffle(listed)
    again = numbering.of("cuda", [card for number, card in enumerate(listed) if number != hidden])
    assert all(indexes[card.identity["pci"]] == index for index, card in again)


def _at(address: int, position: int) -> DetectedDevice:
    return replace(CARD, position=position, identity={"pci": f"0000:{address:02x}:00.0"})


def test_a_new_card_gets_a_new_index_and_backends_count_apart() -> None:
    numbering = Numbering()
    assert [index for index, _ in numbering.of("cuda", [_at(5, 0)])] == [0]
    both = sorted((index, card.identity["pci"][5:7]) for index, card in numbering.of("cuda", [_at(1, 0), _at(5, 1)]))
    assert both == [(0, "05"), (1, "01")]
    assert [index for index, _ in numbering.of("vulkan", [_at(1, 0)])] == [0]


def test_two_devices_that_claim_one_address_and_those_without_one_still_have_indexes_of_their_own() -> None:
    numbering = Numbering()
    twins = [_at(1, 0), replace(_at(1, 1), identity={"pci": "0000:01:00.0"})]
    nameless = [replace(CARD, position=position, identity={}) for position in (2, 3)]
    assert sorted(index for index, _ in numbering.of("cuda", [*twins, *nameless])) == [0, 1, 2, 3]
    assert len(numbering.of("xpu", [_at(number, number) for number in range(INDEX_LIMIT + 3)])) == INDEX_LIMIT


def report(state: DeviceState, runtime: str, *engines: str, **more: Any) -> Device:
    served = {runtime: list(engines)} if engines else {}
    fields: dict[str, Any] = {"runtimes": [runtime], "engines": list(engines), "served_by": served, **more}
    return Device("cuda:0", "A card", "cuda", "gpu", state, **fields)


@pytest.mark.parametrize(
    ("states", "best"),
    [
        (("broken", "ready"), "ready"),
        (("installable", "unavailable", "broken"), "broken"),
        (("quarantined", "broken"), "quarantined"),
        (("unavailable", "probing"), "probing"),
        (("installable", "unavailable"), "unavailable"),
    ],
)
def test_a_device_of_several_runtimes_has_the_best_of_their_states(states: tuple[DeviceState, ...], best: str) -> None:
    assert merged(report(state, f"r{number}") for number, state in enumerate(states)).state == best


def test_a_device_offers_the_engines_of_all_ready_runtimes_and_lacks_only_what_none_offers() -> None:
    device = merged([
        report("ready", "torch", "transformers", lacks={"musicgen": "no", "llama.cpp": "no"}, versions={"numpy": "1"}),
        report("broken", "rocm", "diffusers"),
        report("ready", "base", "llama.cpp", versions={"numpy": "2", "x": "3"}, tasks=["text"]),
    ])  # fmt: skip
    assert device.runtimes == ["torch", "base"] and device.engines == ["transformers", "llama.cpp"]
    assert device.served_by == {"torch": ["transformers"], "base": ["llama.cpp"]}
    assert device.lacks == {"musicgen": "no"} and device.tasks == ["text"]
    assert device.versions == {"numpy": "1", "x": "3"}, "the first runtime's version is shown"


def test_the_hardware_of_a_device_is_found_by_its_address_and_else_as_its_library_says() -> None:
    hardware = [Hardware("pci:0000:02:00.0", "Other", "AMD", "gpu"), Hardware("pci:0000:01:00.0", "This", "AMD", "gpu")]
    assert on_hardware(replace(CARD, hardware_id="torch:7"), hardware) == "pci:0000:01:00.0"
    assert on_hardware(replace(CARD, hardware_id="torch:7", identity={}), hardware) == "torch:7"
    assert on_hardware(replace(CARD, identity={"pci": "0000:09:00.0"}, hardware_id=None), hardware) is None


def test_a_stored_proof_returns_unchanged_until_one_of_its_conditions_changes(tmp_path: Path) -> None:
    device = proved(fresh(), "torch", outcome({"op": "engines", "engines": {"transformers": {}}}))
    conditions: tuple[Any, ...] = (device, "torch", "/python", {"torch": "2.1"}, "550")
    cache = ProofCache(tmp_path / "proofs.json")
    cache.put(ProofCache.key(*conditions), device)
    later = ProofCache(tmp_path / "proofs.json")
    assert later.get(ProofCache.key(*conditions)) == device
    others: list[tuple[int, Any]] = [(1, "rocm"), (2, "/python2"), (3, {"torch": "2.2"}), (4, "551"), (4, None)]
    for place, value in [*others, (0, replace(device, name="Another card"))]:
        changed = [value if number == place else each for number, each in enumerate(conditions)]
        assert later.get(ProofCache.key(*changed)) is None
    later.put(ProofCache.key(*conditions), replace(device, state="broken"))
    assert ProofCache(tmp_path / "proofs.json").get(ProofCache.key(*conditions)) is None
