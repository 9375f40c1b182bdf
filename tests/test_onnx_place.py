"""Devices through ONNX Runtime, with a stand-in library: what is listed, opened, refused, and counted as placement."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent, OnnxProvider
from backend.devices._mechanisms import onnx
from backend.devices._mechanisms.onnx_placement import OnnxPlace

STONE = OnnxProvider(names=("stone",), none_listed="it lists none", lists_devices=True)
LIBRARY = "stand_in_onnxruntime"


def ep_device(name: str = "StoneExecutionProvider", kind: str = "GPU", **metadata: str) -> Any:
    return SimpleNamespace(
        ep_name=name,
        ep_metadata={},
        device=SimpleNamespace(type=f"OrtHardwareDeviceType.{kind}", metadata=metadata),
    )


class Library:
    """A stand-in for ONNX Runtime with these devices and built-in providers."""

    __version__ = "1.26.0"

    def __init__(self, folder: Path, devices: list[Any], built_in: list[str]) -> None:
        self.__file__ = str(folder / "__init__.py")
        self.devices, self.built_in = devices, built_in
        self.registered: list[str] = []

    def get_ep_devices(self) -> list[Any]:
        return self.devices

    def get_available_providers(self) -> list[str]:
        return self.built_in

    def register_execution_provider_library(self, name: str, path: str) -> None:
        if "broken" in Path(path).read_text():
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : libstone.so.1: cannot open shared object file")
        if "no plug-in" in Path(path).read_text():
            raise RuntimeError("undefined symbol: CreateEpFactories")
        self.registered.append(name)


def backend(provider: OnnxProvider = STONE) -> Backend:
    return Backend("onnx-stone", "Stone", "gpu", 1, ("onnx",), onnx=replace(provider, library=LIBRARY))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    stand_in = Library(tmp_path, [], [])
    monkeypatch.setitem(sys.modules, LIBRARY, stand_in)
    monkeypatch.setattr(onnx, "_registered", set())
    return stand_in


def listed(provider: OnnxProvider = STONE) -> list[DetectedDevice]:
    return onnx.enumerate_devices(backend(provider), LIBRARY)


def test_each_device_of_the_provider_is_listed_with_its_identity(library: Library) -> None:
    library.devices = [
        ep_device(pci_bus_id="0000:C1:00.0", Description="Card \x00one", DxgiVideoMemory="8589934592"),
        ep_device("Other", pci_bus_id="0000:02:00.0"),
        ep_device(kind="NPU", LUID="51410"),
        ep_device(Discrete="0"),
        ep_device(kind="CPU"),
    ]
    first, second, third, fourth = listed()
    assert (first.name, first.hardware_id, first.memory_bytes) == ("Card one", "pci:0000:c1:00.0", 8 << 30)
    assert (second.kind, second.hardware_id) == ("npu", "luid:0x00000000_0x0000c8d2")
    assert (third.kind, third.hardware_id, third.position, third.count) == ("integrated", None, 2, 4)
    assert (fourth.kind, fourth.hardware_id) == ("cpu", "cpu:0")


def test_a_virtual_device_that_only_compiles_is_left_out(library: Library) -> None:
    library.devices = [ep_device(is_virtual="1"), ep_device(is_virtual="0", pci_bus_id="0000:01:00.0")]
    assert [device.hardware_id for device in listed()] == ["pci:0000:01:00.0"]


@pytest.mark.parametrize(
    ("built_in", "provider", "reason", "quiet"),
    [
        ([], STONE, "onnxruntime 1.26.0 has no such provider", True),
        (["StoneExecutionProvider"], STONE, "it lists none", False),
        (["CPUExecutionProvider"], STONE, "onnxruntime 1.26.0 has no such provider", True),
    ],
)
def test_no_device_is_explained(
    library: Library, built_in: list[str], provider: OnnxProvider, reason: str, quiet: bool
) -> None:
    library.built_in = built_in
    with pytest.raises(DeviceAbsent, match=reason) as caught:
        listed(provider)
    assert caught.value.quiet is quiet


def test_an_older_provider_that_lists_no_devices_is_worth_a_try(library: Library) -> None:
    library.built_in = ["CPUExecutionProvider", "STONEExecutionProvider"]
    (device,) = listed(replace(STONE, lists_devices=False))
    assert (device.name, device.provider, device.identity) == ("Stone", "STONEExecutionProvider", {})
    place = onnx.open_device(backend(), device, "onnx-stone:0")
    assert (place.provider, place.ep_device, place.device) == ("STONEExecutionProvider", None, "onnx-stone:0")


def provider_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime_providers_stone.so").write_text(content)
    (tmp_path / "capi" / "libonnxruntime_providers_other.so").write_text("broken")


@pytest.mark.skipif(sys.platform == "win32", reason="the file has another name there")
def test_the_provider_s_library_is_registered_once_and_no_other(library: Library, tmp_path: Path) -> None:
    provider_file(tmp_path, "good")
    for _ in range(2):
        with pytest.raises(DeviceAbsent, match="it lists none") as caught:
            listed()
        assert caught.value.quiet, "its library is there, but the provider is not built in"
    assert library.registered == ["touchstone.onnx-stone"]


@pytest.mark.skipif(sys.platform == "win32", reason="the file has another name there")
def test_a_library_that_does_not_load_names_what_is_missing(library: Library, tmp_path: Path) -> None:
    provider_file(tmp_path, "broken")
    with pytest.raises(DeviceAbsent, match=r"does not load: libstone\.so\.1: cannot open"):
        listed()


@pytest.mark.skipif(sys.platform == "win32", reason="the file has another name there")
def test_a_library_of_the_older_kind_is_no_error(library: Library, tmp_path: Path) -> None:
    provider_file(tmp_path, "no plug-in")
    with pytest.raises(DeviceAbsent, match="it lists none"):
        listed()


def test_a_device_is_opened_by_its_identity_and_not_by_its_place(library: Library) -> None:
    library.devices = [ep_device(pci_bus_id="0000:01:00.0"), ep_device(pci_bus_id="0000:02:00.0")]
    second = listed()[1]
    library.devices.reverse()
    assert onnx.open_device(backend(), second).ep_device.device.metadata["pci_bus_id"] == "0000:02:00.0"
    library.devices = library.devices[1:]
    with pytest.raises(DeviceAbsent, match="is gone"):
        onnx.open_device(backend(), second)
    library.devices = []
    with pytest.raises(DeviceAbsent, match="is gone"):
        onnx.open_device(backend(), second)


class Options:
    """A stand-in for SessionOptions that records what is set."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.devices: list[tuple[list[Any], dict[str, str]]] = []
        self.dimensions: dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.devices.append((devices, options))

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self.dimensions[name] = size


def place(
    version: str = "1.26.0", device: Any = None, provider: str = "StoneExecutionProvider", **facts: Any
) -> OnnxPlace:
    made: Any = SimpleNamespace(
        __version__=version,
        SessionOptions=Options,
        InferenceSession=lambda source, **arguments: SimpleNamespace(source=source, **arguments),
    )
    return OnnxPlace(made, "onnx-stone:0", provider, device, replace(STONE, **facts), options={"level": 3})


NO_FALLBACK = "session.disable_cpu_ep_fallback"


def test_a_session_for_a_listed_device_names_no_other_provider() -> None:
    device = ep_device()
    session = place(device=device).session("m.onnx", threads=2, dimensions={"batch": 1})
    assert session.providers is None and session.enable_fallback == 0
    assert session.sess_options.devices == [([device], {"level": "3"})]
    assert session.sess_options.dimensions == {"batch": 1} and session.sess_options.intra_op_num_threads == 2
    assert NO_FALLBACK not in session.sess_options.entries
    assert place(device=device).session("m.onnx", strict=True).sess_options.entries[NO_FALLBACK] == "1"


def test_an_older_provider_never_falls_back_to_the_processor() -> None:
    session = place().session(b"model")
    assert session.providers == [("StoneExecutionProvider", {"level": "3"})]
    assert session.sess_options.entries[NO_FALLBACK] == "1"
    processor = place(provider="CPUExecutionProvider")
    assert processor.is_processor and NO_FALLBACK not in processor.session(b"model").sess_options.entries


def test_options_of_the_user_win_over_the_cache_and_those_of_the_call_over_both() -> None:
    made = place(cache_options=lambda folder, provider: {"cache": folder, "level": "1"})
    made.cache = "/cache"
    session = made.session(b"model", provider_options={"mode": 7})
    assert session.providers == [("StoneExecutionProvider", {"cache": "/cache", "level": "3", "mode": "7"})]


@pytest.mark.parametrize(
    ("version", "spins"), [("1.25.1", "0"), ("1.26.0", "1"), ("1.100.0+cu13", "1"), ("2.0.0", "1")]
)
def test_threads_spin_only_where_the_version_can_limit_it(version: str, spins: str) -> None:
    entries = place(version).session(b"model").sess_options.entries
    assert entries["session.intra_op.allow_spinning"] == spins
    assert ("session.force_spinning_stop" in entries) == (spins == "1")


def assigned(**nodes: int) -> Any:
    parts = [SimpleNamespace(ep_name=name, get_nodes=lambda count=count: [0] * count) for name, count in nodes.items()]
    return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)


def test_placement_counts_the_nodes_of_all_sessions() -> None:
    sessions = [assigned(StoneExecutionProvider=5, CPUExecutionProvider=1), assigned(CPUExecutionProvider=2, Odd=2)]
    placement = place().placement(sessions)
    assert placement.on_device == 0.5
    assert {part.where: part.share_of_nodes for part in placement.parts} == {
        "onnx-stone:0": 0.5,
        "cpu": 0.3,
        "Odd": 0.2,
    }
    assert "5 of 10 nodes" in placement.evidence


def test_without_a_record_the_placement_is_unknown() -> None:
    placement = place().placement([SimpleNamespace()])
    assert placement.on_device is None and "does not record" in placement.evidence


def test_a_profile_counts_each_node_once_and_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    events = [{"name": f"n{number % 2}", "args": {"provider": "StoneExecutionProvider"}} for number in range(6)]
    path.write_text(json.dumps([*events, {"name": "run"}, {"name": "x", "args": {}}]))
    session = SimpleNamespace(end_profiling=lambda: str(path))
    assert place().nodes_run(session) == (Counter({"onnx-stone:0": 2}), "profile")
    assert not path.exists()
    assert place().nodes_run(session) == (Counter(), "profile"), "a profile that is missing proves nothing"
