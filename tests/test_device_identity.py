"""Which card is which: ids in every spelling, matching after a change, visibility, and evidence of placement."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.common.clean_text import clean_name
from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent, TorchAccess, detected_device_from
from backend.common.errors import DeviceNotReady
from backend.common.types import Hardware
from backend.devices import _placement, _registry
from backend.devices._mechanisms import mig, torch_cuda
from backend.devices._mechanisms.identity import (
    free_size,
    hardware_id,
    is_instance,
    match_device,
    pci_address,
    size,
    uuid_text,
    with_ranks,
)
from backend.devices._mechanisms.onnx import clean_error_text, provider_key
from backend.devices._mechanisms.software_adapters import is_software
from backend.devices._mechanisms.torch import build_name, loaded_library, preferred_dtype, versions
from backend.devices._mechanisms.torch_placement import TorchPlace
from backend.devices._visibility import show_all_devices, show_only, visibility_variables
from backend.scheduling.probing.device_merge import Numbering, on_hardware


def card(position: int, count: int = 2, **identity: str) -> DetectedDevice:
    return DetectedDevice(
        f"card {position}", "gpu", None, None, None, "torch", position=position, count=count, identity=identity
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:01:00.0", "0000:01:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("1:0", "0000:01:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("0000:00:00.0", None),
        ("0000:01:20.0", None),
        ("GPU-0", None),
        ("", None),
        (None, None),
    ],
)
def test_an_address_has_one_spelling_and_all_zeros_is_none(text: Any, address: str | None) -> None:
    assert pci_address(text) == address


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("5b4e6d3a-aaaa-bbbb-cccc-0123456789ab", "GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab"),
        ("GPU-5B4E6D3A-AAAA-BBBB-CCCC-0123456789AB", "GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab"),
        ("5b4e6d3aaaaabbbbcccc0123456789ab", "GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab"),
        ("66346165-3061-3135-3732-613266313031", "GPU-f4ae0a1572a2f101"),
        ("00000000-0000-0000-0000-000000000000", None),
        ("GPU-short", None),
        (None, None),
        ("", None),
    ],
    ids=["torch", "nvidia-smi", "Vulkan", "HIP: characters as bytes", "zeros", "too short", "none", "empty"],
)
def test_a_uuid_is_written_as_the_driver_s_tool_writes_it(value: Any, text: str | None) -> None:
    assert uuid_text(value) == text


def test_the_best_identity_names_the_hardware() -> None:
    assert hardware_id({"pci": "0000:01:00.0", "luid": "x", "uuid": "GPU-AB"}) == "pci:0000:01:00.0"
    assert hardware_id({"luid": "0x00000000_0x0000c8d2", "uuid": "GPU-AB"}) == "luid:0x00000000_0x0000c8d2"
    assert hardware_id({"uuid": "GPU-AB"}) == "uuid:ab"
    assert hardware_id({"listed": "yes"}) is None


@settings(max_examples=40, derandomize=True, database=None, deadline=None)
@given(st.permutations(range(5)))
def test_a_card_is_found_by_its_address_in_any_order(order: list[int]) -> None:
    cards = [card(number, 5, pci=f"0000:0{number}:00.0") for number in range(5)]
    listed = [replace(cards[number], position=place) for place, number in enumerate(order)]
    for wanted in cards:
        assert match_device(wanted, listed).name == wanted.name


def test_a_card_that_is_gone_is_never_replaced_by_its_neighbour() -> None:
    wanted = card(0, pci="0000:01:00.0")
    with pytest.raises(DeviceAbsent, match="is gone"):
        match_device(wanted, [card(0, 1, pci="0000:02:00.0")])
    with pytest.raises(DeviceAbsent):
        match_device(wanted, [])


def test_a_library_that_reports_less_is_matched_by_what_both_report() -> None:
    wanted = card(1, pci="0000:02:00.0", uuid="GPU-b")
    listed = [card(0, uuid="GPU-a"), card(1, uuid="GPU-b")]
    assert match_device(wanted, listed) is listed[1]
    assert match_device(wanted, list(reversed(listed))) is listed[1]


def alike(count: int, **facts: Any) -> list[DetectedDevice]:
    """Return cards without identity that equal each other, as one process lists them."""
    return with_ranks([replace(card(place, count), name="Arc", **facts) for place in range(count)])


def test_without_an_identity_name_and_rank_decide() -> None:
    first, second = with_ranks([card(0), card(1)])
    assert match_device(second, [first, second]).position == 1
    moved = [replace(second, position=0), replace(first, position=1)]
    assert match_device(second, moved, masked=False).position == 0, "the order changed, the name is unique"
    with pytest.raises(DeviceAbsent, match="card 0 is in its place"):
        match_device(second, [replace(first, count=1)])
    twins = alike(2)
    assert [match_device(twin, twins).position for twin in twins] == [0, 1]
    assert match_device(twins[1], alike(1)).position == 0, "a variable shows only the card that was asked for"
    with pytest.raises(DeviceAbsent, match="1 devices instead of 2"):
        match_device(twins[1], alike(1), masked=False)
    with pytest.raises(DeviceAbsent, match="3 devices instead of 2"):
        match_device(twins[1], alike(3))


def test_memory_tells_cards_of_one_name_apart() -> None:
    big, small = (replace(card(place), name="Arc", memory_bytes=size) for place, size in enumerate((16 << 30, 8 << 30)))
    wanted = with_ranks([big, small])[1]
    assert match_device(wanted, [replace(small, position=0), replace(big, position=1)], masked=False).position == 0
    with pytest.raises(DeviceAbsent, match="in its place"):
        match_device(wanted, [big])


def test_a_uuid_of_two_cards_is_not_ascribed_to_one_of_them() -> None:
    cards = [Hardware(f"pci:0000:0{place}:00.0", "A card", "NVIDIA", "gpu", uuid="GPU-A") for place in (1, 2)]
    seen = card(0, uuid="GPU-a")
    assert on_hardware(seen, cards[:1]) == "pci:0000:01:00.0"
    assert on_hardware(replace(seen, hardware_id="uuid:a"), cards) == "uuid:a"


def test_cards_with_one_uuid_are_told_apart_by_address() -> None:
    cards = with_ranks([card(place, uuid="GPU-a", pci=f"0000:0{place + 1}:00.0") for place in range(2)])
    assert [match_device(each, cards).position for each in cards] == [0, 1]


def test_an_address_or_a_luid_with_another_name_is_another_card() -> None:
    for identity in ({"pci": "0000:01:00.0"}, {"luid": "0x00000000_0x0000c8d2"}):
        with pytest.raises(DeviceAbsent, match="card 1 is in its place"):
            match_device(card(0, 1, **identity), [card(1, 1, **identity)], masked=False)


def test_two_drivers_of_one_card_are_told_apart_by_name() -> None:
    both = [replace(card(place, pci="0000:01:00.0"), name=name) for place, name in enumerate(("RADV", "AMDVLK"))]
    assert match_device(both[1], both).name == "AMDVLK"


@pytest.mark.parametrize(
    ("value", "instance", "text"),
    [
        ("MIG-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab", False, "MIG-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab"),
        ("5b4e6d3a-aaaa-bbbb-cccc-0123456789ab", True, "MIG-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab"),
        (
            "MIG-GPU-5B4E6D3A-aaaa-bbbb-cccc-0123456789ab/11/0",
            False,
            "MIG-GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab/11/0",
        ),
        ("MIG-short", False, None),
    ],
)
def test_an_instance_of_a_card_keeps_its_prefix(value: str, instance: bool, text: str | None) -> None:
    assert uuid_text(value, instance) == text
    identity = {"uuid": text or "", "pci": "0000:01:00.0"}
    expected = f"uuid:{text.lower()}" if text else "pci:0000:01:00.0"
    assert (is_instance(identity), hardware_id(identity)) == (text is not None, expected)


def test_instances_keep_their_index_and_the_first_takes_that_of_the_whole_card() -> None:
    pci = "0000:01:00.0"
    first, second = (card(place, pci=pci, uuid=f"MIG-5b4e6d3a-aaaa-bbbb-cccc-0123456789a{place}") for place in (0, 1))
    numbering = Numbering()
    assert numbering.of("cuda", [card(0, 1, pci=pci)])[0][0] == 0
    assert [index for index, _ in numbering.of("cuda", [first, second])] == [0, 1]
    assert [index for index, _ in numbering.of("cuda", [second])] == [1]
    again = {each.name: index for index, each in numbering.of("cuda", [second, first])}
    assert again == {"card 0": 0, "card 1": 1}


def test_a_card_without_address_keeps_its_place_in_a_list_by_address() -> None:
    first, sick, third = card(0, 3, pci="0000:01:00.0"), card(1, 3), card(2, 3, pci="0000:03:00.0")
    assert [each.name for _, each in Numbering().of("cuda", [first, sick, third])] == ["card 0", "card 1", "card 2"]
    moved = [replace(third, position=0), replace(sick, position=1), replace(first, position=2)]
    assert [each.name for _, each in Numbering().of("cuda", moved)] == ["card 0", "card 2", "card 1"]


def test_an_instance_is_found_whatever_prefix_a_process_knows() -> None:
    wanted = card(0, 1, uuid="MIG-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab", pci="0000:01:00.0")
    seen = card(0, 1, uuid="GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab", pci="0000:01:00.0")
    assert match_device(wanted, [seen]) is seen
    old = replace(wanted, identity={"uuid": "MIG-GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab/1/0"})
    assert match_device(old, [seen]) is seen, "CUDA reports the card's UUID before driver 470"


def test_instances_of_the_driver_join_the_card_that_cuda_lists() -> None:
    first, second = (
        card(0, 1, uuid=f"MIG-5b4e6d3a-aaaa-bbbb-cccc-0123456789a{end}", pci="0000:01:00.0") for end in "ab"
    )
    whole = card(0, 1, uuid="GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ac", pci="0000:02:00.0")
    listed = [replace(first, name="as CUDA names it"), replace(card(1), fault="ValueError: Invalid device id")]
    found = mig.joined(listed, [first, second, whole])
    assert [(each.name, each.fault, each.position, each.count) for each in found] == [
        ("as CUDA names it", None, 0, 3),
        ("card 0", None, 1, 3),
        ("card 0", None, 2, 3),
    ]
    assert mig.joined(listed, [whole]) == listed, "without an instance CUDA's list is complete"
    old = [replace(first, identity={"uuid": f"MIG-{whole.identity['uuid']}/{number}/0"}) for number in (1, 2)]
    assert [each.identity for each in mig.joined([whole], old)] == [each.identity for each in old]


SOFTWARE = [
    "Microsoft Basic Render Driver",
    "Microsoft Remote Display Adapter",
    "Microsoft Basic Display Adapter",
    "Microsoft-Remotedisplayadapter",
    "Базовый видеоадаптер (Майкрософт)",
    "Microsoft 基本显示适配器",
    "WARP",
    "llvmpipe (LLVM 17.0.6, 256 bits)",
    "softpipe",
    "SwiftShader Device (LLVM 10.0.0)",
    "Google SwiftShader",
    "VMware SVGA 3D",
    "Parallels Display Adapter (WDDM)",
    "Red Hat QXL controller",
    "Red Hat VirtIO GPU DOD controller",
    "VirtualBox Graphics Adapter (WDDM)",
    "Virtio-GPU Venus (llvmpipe (LLVM 17.0.6, 256 bits))",
    "Microsoft Direct3D12 (Microsoft Basic Render Driver)",
    "Parsec Virtual Display Adapter",
    "Citrix Indirect Display Adapter",
]
CARDS = [
    "NVIDIA GeForce RTX 3060",
    "AMD Radeon RX 7900 XTX (RADV NAVI31)",
    "Intel(R) Arc(TM) A770 Graphics",
    "Intel(R) Iris(R) Xe Graphics",
    "Qualcomm(R) Adreno(TM) X1-85 GPU",
    "Microsoft SQ2 Adreno 690",
    "Microsoft Direct3D12 (NVIDIA GeForce RTX 3060)",
    "Virtio-GPU Venus (AMD Radeon RX 6800)",
    "GRID T4-8Q",
    "Apple M3 Max",
    "NVIDIA RTX 6000 Ada Generation",
    "Radeon RX 560X",
    "MTT S80",
    "レイデオン RX 6600",
]


def test_software_is_known_by_name() -> None:
    assert [name for name in SOFTWARE if not is_software(name)] == []
    assert [name for name in CARDS if is_software(name)] == []


def test_software_is_known_by_its_ids_whatever_its_name() -> None:
    assert is_software("Adattatore", 0x1414, 0x8C) and is_software("x", 0x10005, 0) and is_software("x", driver=13)
    assert not is_software("x", 0x10DE, 0x2684, 4) and not is_software("WebGpuExecutionProvider", 0x1414, 0x8E)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("8031 MB", 8031 << 20),
        ("8 GB", 8 << 30),
        ("1,5 GiB", 3 << 29),
        ("512MiB", 1 << 29),
        ("77", 77),
        ("0 MB", None),
    ],
)
def test_sizes_may_have_units(value: str, number: int | None) -> None:
    assert size(value) == number


@pytest.mark.parametrize(
    ("name", "kind"),
    [("AMD Radeon Pro 5500M", "gpu"), ("Apple M3 Max", "integrated"), ("Intel(R) UHD Graphics 630", "integrated")],
)
def test_a_radeon_of_an_intel_mac_is_a_card(name: str, kind: str) -> None:
    module = SimpleNamespace(is_built=lambda: True, is_available=lambda: True, get_name=lambda: name)
    torch = SimpleNamespace(backends=SimpleNamespace(mps=module), mps=SimpleNamespace())
    support = _registry.backends()["mps"].torch
    assert support
    assert [(device.name, device.kind) for device in support.list_devices(torch)] == [(name, kind)]


def test_full_memory_is_zero_and_not_unknown() -> None:
    assert (free_size(0), free_size("0"), free_size(None), free_size(-1)) == (0, 0, None, None)
    assert free_size(str(2**64 - 1)) is None, "as the number itself"


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("NVIDIA H100", "NVIDIA H100"),
        ("\x1b[31mred\x00\u202e", "red"),
        ("", "unnamed"),
        ("\u200b \n", "unnamed"),
        ("a\ud800b", "a\\ud800b"),
        ("RTX\U000e0041\U000e007f 4090\ufe0f\u3164", "RTX 4090"),
        (None, "None"),
    ],
)
def test_names_of_drivers_are_shown_without_control_characters(name: Any, cleaned: str) -> None:
    assert clean_name(name) == cleaned


def test_a_name_of_kilobytes_is_cut() -> None:
    assert clean_name("x" * 5000) == "x" * 100


@pytest.mark.parametrize("value", [None, "", "much", 0, -1, float("nan"), float("inf"), 2**63, [], -(2**70)])
def test_implausible_sizes_are_unknown(value: Any) -> None:
    assert size(value) is None


def test_sizes_may_be_texts_and_fractions() -> None:
    assert (size("8589934592"), size(1.9), size(1 << 50)) == (8589934592, 1, 1 << 50)


def test_a_device_survives_its_way_through_json() -> None:
    device = card(1, pci="0000:01:00.0")
    assert detected_device_from(dict(device.__dict__)) == device
    with pytest.raises(TypeError):
        detected_device_from({"name": "x", "unknown": 1})


def test_a_backend_without_any_library_is_an_error_at_import() -> None:
    with pytest.raises(ValueError, match="names no library"):
        Backend("x", "X", "gpu", 1, ("torch",))


@pytest.mark.parametrize(
    ("device", "parts"), [("cpu", ("cpu", 0)), ("cuda:0", ("cuda", 0)), ("onnx-cuda:12", ("onnx-cuda", 12))]
)
def test_an_id_has_a_backend_and_an_index(device: str, parts: tuple[str, int]) -> None:
    assert _registry.split_id(device) == parts


def test_every_library_reaches_its_backends_and_no_other() -> None:
    for library in _registry.libraries():
        names = _registry.backends_of(library)
        assert names and all(library in _registry.backends()[name].libraries for name in names)
        assert "cpu" not in names[1:], "the processor is first"
    with pytest.raises(KeyError, match="does not reach"):
        _registry.mechanism("cuda", "onnxruntime")
    assert _registry.library_of("directml") == "torch_directml"


def test_an_engine_cannot_open_a_device_that_its_library_does_not_reach() -> None:
    with pytest.raises(DeviceNotReady, match="torch does not reach"):
        _placement.torch_place("vulkan:0")
    with pytest.raises(DeviceNotReady, match="ONNX Runtime does not reach"):
        _placement.onnx_place("cuda:0")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    saved = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(saved)


@pytest.mark.usefixtures("environment")
def test_for_listing_no_variable_of_the_user_hides_a_card() -> None:
    for name in visibility_variables():
        os.environ[name] = "7"
    os.environ["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST"
    show_all_devices()
    assert not [name for name in visibility_variables() if os.environ.get(name) == "7"]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.usefixtures("environment")
def test_a_worker_sees_its_card_and_none_of_other_backends() -> None:
    show_only("cuda", replace(card(1, uuid="GPU-b"), selectors=["GPU-b", "1"]))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert os.environ["HIP_VISIBLE_DEVICES"] == "-1" and os.environ["GGML_VK_VISIBLE_DEVICES"] == ""
    show_only("rocm", card(3))
    assert os.environ["HIP_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "HIP obeys it too"
    show_only("cpu", None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1" == os.environ["HIP_VISIBLE_DEVICES"]


def fake_torch(cards: list[Any], hip: str | None = None, failure: Exception | None = None) -> Any:
    def init() -> None:
        if failure:
            raise failure

    cuda = SimpleNamespace(
        is_available=lambda: bool(cards),
        device_count=lambda: len(cards),
        get_device_properties=lambda position: cards[position],
        get_device_name=lambda position: f"card {position}",
        init=init,
    )
    return SimpleNamespace(cuda=cuda, __version__="2.9.0", version=SimpleNamespace(hip=hip, cuda="13.0", xpu=None))


def test_cards_of_torch_are_described_by_what_this_version_reports() -> None:
    old = SimpleNamespace(name="NVIDIA H100", total_memory=80 << 30, major=9, minor=0)
    new = SimpleNamespace(name="NVIDIA L4", total_memory=24 << 30, pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    first, second = torch_cuda.list_cards(fake_torch([old, new]), lambda position: "0000:01:00.0", "NVIDIA")
    assert (first.hardware_id, first.architecture) == ("pci:0000:01:00.0", "sm_90")
    assert (second.hardware_id, second.architecture) == ("pci:0000:c1:00.0", None)
    assert (first.memory_bytes, second.position, second.count) == (80 << 30, 1, 2)


def test_a_card_of_rocm_is_named_by_its_target_without_features() -> None:
    props = SimpleNamespace(name="", gcnArchName="gfx90a:sramecc+:xnack-", major=9, minor=0, is_integrated=1)
    (device,) = torch_cuda.list_cards(fake_torch([props], hip="6.4"), lambda position: None, "AMD")
    assert (device.architecture, device.kind, device.name, device.hardware_id) == (
        "gfx90a",
        "integrated",
        "card 0",
        None,
    )


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (
            RuntimeError("Found no NVIDIA driver on your system.\nPlease check"),
            "Found no NVIDIA driver on your system.",
        ),
        (AssertionError("Torch not compiled with CUDA enabled"), "Torch not compiled with CUDA enabled"),
        (RuntimeError(""), "RuntimeError"),
        (AttributeError("init"), "it lists no card"),
        (None, "it lists no card"),
    ],
)
def test_no_card_is_explained_in_the_words_of_torch(failure: Exception | None, reason: str) -> None:
    with pytest.raises(DeviceAbsent) as caught:
        torch_cuda.list_cards(fake_torch([], failure=failure), lambda position: None, "NVIDIA")
    assert str(caught.value) == reason


def test_a_driver_library_that_is_missing_reports_no_address() -> None:
    addresses = torch_cuda.driver_addresses(("libnothing-at-all.so.1",), "cuDeviceGetPCIBusId", by_ordinal=False)
    assert addresses(0) is None
    assert loaded_library("libnothing-at-all") == ()


def test_builds_and_versions_of_torch_are_named() -> None:
    assert build_name(fake_torch([], hip="6.4")) == "torch 2.9.0, built for ROCm (HIP 6.4)"
    assert build_name(fake_torch([])) == "torch 2.9.0, built for CUDA 13.0"
    assert build_name(SimpleNamespace()) == "torch of an unknown version, built for the processor alone"
    mps = SimpleNamespace(is_built=lambda: True)
    assert "Apple" in build_name(SimpleNamespace(__version__="2", backends=SimpleNamespace(mps=mps)))


def test_bfloat16_is_used_only_where_the_card_computes_it_itself() -> None:
    def supported(including_emulation: bool = True) -> bool:
        return including_emulation

    assert preferred_dtype(SimpleNamespace(is_bf16_supported=supported)) == "float16"
    assert preferred_dtype(SimpleNamespace(is_bf16_supported=lambda including_emulation: True)) == "bfloat16"
    assert preferred_dtype(SimpleNamespace()) == "float16"


def test_versions_come_from_the_imported_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", fake_torch([]))
    assert versions("torch") == {"torch": "2.9.0", "cuda": "13.0"}


def tensor(where: str, numbers: int) -> Any:
    return SimpleNamespace(device=SimpleNamespace(type=where), numel=lambda: numbers, element_size=lambda: 2)


def place(counted: int | None, free: int | None = None) -> TorchPlace:
    allocated = None if counted is None else lambda: counted
    access = TorchAccess(None, "cuda:0", "cuda", lambda: None, allocated, free_bytes=lambda: free)
    return TorchPlace("cuda:0", access)


def test_placement_is_counted_in_bytes_and_checked_by_the_allocator() -> None:
    placement = place(1000).placement([tensor("cuda", 300), tensor("cpu", 100)])
    assert placement.on_device == 0.75
    assert [(part.where, part.share_of_nodes) for part in placement.parts] == [("cuda:0", 0.75), ("cpu", 0.25)]


def test_tensors_that_were_never_allocated_prove_nothing() -> None:
    placement = place(599).placement([tensor("cuda", 300)])
    assert placement.on_device is None and "placement unknown" in placement.evidence


def test_a_library_that_does_not_count_is_believed_and_named() -> None:
    placement = place(None).placement([tensor("cuda", 300)])
    assert placement.on_device == 1 and "not counted" in placement.evidence
    assert place(None).placement([]).on_device is None


def test_memory_taken_is_the_difference_of_the_free_memory() -> None:
    assert place(0, free=300).taken_since(1000)() == 700
    assert place(0, free=1200).taken_since(1000)() == 0, "another program exited"
    assert place(0, free=300).taken_since(None)() is None
    assert place(0, free=None).taken_since(1000)() is None


@pytest.mark.parametrize(
    "name", ["DmlExecutionProvider", "DML", "dml", " Dml_Execution_Provider ", "DMLExecutionProvider"]
)
def test_a_provider_has_one_name_in_all_versions(name: str) -> None:
    assert provider_key(name) == "dml"


def test_errors_of_onnx_runtime_lose_their_prefix() -> None:
    error = RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Conv(11)")
    assert clean_error_text(error) == "Could not find an implementation for Conv(11)"
    assert clean_error_text(ValueError("")) == "ValueError"
