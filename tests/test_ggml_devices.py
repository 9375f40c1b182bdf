"""Devices through ggml: which cards each backend lists, in which order, and why one lists none."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backend.common.device_api import DetectedDevice, DeviceAbsent
from backend.common.errors import DeviceLost, DeviceNotReady
from backend.devices import backends, backends_of, ggml_place, llama_runtimes
from backend.devices._mechanisms import cuda_driver, ggml, ggml_vulkan
from backend.devices._mechanisms.llama_builds import LlamaBuild, LlamaLibraries
from backend.devices._mechanisms.vulkan_loader import PhysicalDevice
from backend.engines import engines
from backend.engines._torch.supported_backends import RUNTIMES

GIB = 1 << 30
RTX, OTHER = "0000:01:00.0", "0000:02:00.0"
INSUFFICIENT = "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version"


@dataclass
class Registry:
    """ggml's functions for one registry with cards: (name, description, address, type)."""

    name: str
    cards: list[tuple[str, str, str, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        plain = {"reg_count": lambda: 1, "reg_get": lambda number: 7, "reg_name": lambda reg: self.name.encode()}
        counted = {"reg_dev_count": lambda reg: len(self.cards), "reg_dev_get": lambda reg, position: 100 + position}
        own = {**plain, **counted, "dev_get_props": self._fill, "dev_memory": self._free}
        return Function(own.get(name.removeprefix("ggml_backend_")))

    def _fill(self, handle: int, place: Any) -> None:
        name, description, address, type_ = self.cards[handle - 100]
        props = place._obj
        props.name, props.description, props.device_id = name.encode(), description.encode(), address.encode()
        props.memory_total, props.type = 8 * GIB, type_

    def _free(self, handle: int, free: Any, total: Any) -> None:
        free._obj.value = 3 * GIB


class Function:
    """A function with the attributes of ctypes."""

    def __init__(self, work: Any) -> None:
        self.work, self.argtypes, self.restype = work, (), None

    def __call__(self, *arguments: Any) -> Any:
        return self.work(*arguments)


class Build(LlamaBuild):
    """A build whose libraries are these functions."""

    libraries: LlamaLibraries

    def load(self, cards: bool = True) -> LlamaLibraries:
        """Return the functions."""
        return self.libraries


def use(monkeypatch: pytest.MonkeyPatch, registry: Registry, stem: str = "cuda", **more: Any) -> None:
    """Make this environment have one build, for one backend."""
    files = {name: Path(f"/x/lib{name}.so") for name in ("llama", "ggml", "ggml-base", f"ggml-{stem}")}
    build = Build(f"cyllama-{stem}", "0.7.0", Path("/x"), files)
    object.__setattr__(build, "libraries", LlamaLibraries(registry, registry, None, **more))
    monkeypatch.setattr(ggml, "find_build", lambda: build)


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave NVIDIA's driver of this machine out."""
    monkeypatch.setattr(cuda_driver, "_library", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def listed(backend: str) -> list[DetectedDevice]:
    return ggml.enumerate_devices(backends()[backend], "ggml")


TWO = [("CUDA0", "NVIDIA GeForce RTX 3060", RTX, 1), ("CUDA1", "NVIDIA GeForce RTX 3060", OTHER, 1)]


@pytest.mark.parametrize(
    ("backend", "stem", "registry"),
    [
        ("cuda", "cuda", Registry("CUDA", TWO)),
        ("rocm", "hip", Registry("ROCm", [("ROCm0", "AMD Radeon RX 7900 XTX", RTX, 1)])),
        ("xpu", "sycl", Registry("SYCL", [("SYCL0", "Intel(R) Arc(TM) A770 Graphics", "", 1)])),
        ("mps", "metal", Registry("MTL", [("MTL0", "Apple M2 Pro", "", 1)])),
        ("mps", "metal", Registry("Metal", [("Metal", "AMD Radeon Pro 5500M", "", 1)])),
    ],
    ids=lambda value: value.name if isinstance(value, Registry) else value,
)
def test_each_backend_lists_the_cards_of_its_registry(
    backend: str, stem: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, registry, stem)
    devices = listed(backend)
    assert [device.name for device in devices] == [card[1] for card in registry.cards]
    assert all(device.library == "ggml" and device.memory_bytes == 8 * GIB for device in devices)
    addresses = [card[2] for card in registry.cards if card[2]]
    assert [device.identity["pci"] for device in devices if device.identity] == addresses
    if backend == "mps":
        assert (devices[0].hardware_id, devices[0].kind) == (
            "metal:0",
            "gpu" if "AMD" in devices[0].name else "integrated",
        )
    assert ggml.versions("ggml") == {f"cyllama-{stem}": "0.7.0"}


def test_an_integrated_card_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Registry("ROCm", [("ROCm0", "AMD Radeon 780M", RTX, 2)]), "hip")
    assert listed("rocm")[0].kind == "integrated"


def test_a_card_is_opened_by_its_address_not_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Registry("CUDA", TWO))
    second = listed("cuda")[1]
    use(monkeypatch, Registry("CUDA", [("CUDA0", TWO[1][1], OTHER, 1)]))
    access = ggml_place("cuda:1", second)
    assert (access.handle, access.name, access.free_bytes()) == (100, "CUDA0", 3 * GIB)
    use(monkeypatch, Registry("CUDA", [("CUDA0", TWO[0][1], RTX, 1)]))
    with pytest.raises(DeviceLost, match=r"cuda:1 cannot be opened: NVIDIA GeForce RTX 3060 \(0000:02:00.0\) .* gone"):
        ggml_place("cuda:1", second)
    use(monkeypatch, Registry("CUDA"))
    with pytest.raises(DeviceLost, match="llama.cpp lists no device now"):
        ggml_place("cuda:1", second)


def test_a_backend_that_llama_cpp_does_not_reach_is_refused() -> None:
    with pytest.raises(DeviceNotReady, match="ggml does not reach DirectML"):
        ggml_place("directml:0")


def test_a_missing_driver_is_the_loader_s_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "libcuda.so.1: cannot open shared object file: No such file or directory"
    use(monkeypatch, Registry("CPU"), faults={"cuda": missing})
    with pytest.raises(OSError, match=r"^libcuda.so.1: cannot open"):
        listed("cuda")


def test_a_build_for_other_cards_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Registry("CUDA", TWO))
    with pytest.raises(DeviceAbsent, match="cyllama-cuda 0.7.0 has no backend for ROCm") as caught:
        listed("rocm")
    assert caught.value.quiet
    monkeypatch.setattr(ggml, "find_build", lambda: None)
    with pytest.raises(ImportError, match="No build of llama.cpp is installed"):
        listed("cuda")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "it lists no card"),
        ("load_backend: loaded CPU backend\n" + INSUFFICIENT + "\n", INSUFFICIENT),
        ("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected", "no CUDA-capable device"),
    ],
)
def test_an_empty_list_has_ggml_s_reason(log: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Registry("CUDA"), log=log)
    with pytest.raises(DeviceAbsent, match=reason):
        listed("cuda")


class Driver:
    """NVIDIA's driver library, of a version, with cards by address."""

    def __init__(self, version: int = 12040, cards: dict[bytes, tuple[bytes, int]] | None = None) -> None:
        self.version, self.cards = version, cards or {}
        self.order = list(self.cards)

    def cuInit(self, flags: int) -> int:  # noqa: N802 (CUDA's name)
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.version
        return 0

    def cuDeviceGetByPCIBusId(self, device: Any, address: bytes) -> int:  # noqa: N802
        if address not in self.cards:
            return 101
        device._obj.value = self.order.index(address)
        return 0

    def cuDeviceGetUuid_v2(self, uuid: Any, device: ctypes.c_int) -> int:  # noqa: N802
        uuid._obj[:] = self.cards[self.order[device.value]][0]
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> int:  # noqa: N802
        version = self.cards[self.order[device.value]][1]
        value._obj.value = version // 10 if attribute == 75 else version % 10
        return 0


def test_cuda_s_cards_have_the_driver_s_uuid_which_shows_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {RTX.encode(): (bytes(range(16)), 86), OTHER.encode(): (bytes(range(16, 32)), 120)}
    monkeypatch.setattr(cuda_driver, "_library", lambda: Driver(cards=cards))
    use(monkeypatch, Registry("CUDA", TWO))
    first, second = listed("cuda")
    assert first.identity == {"pci": RTX, "uuid": "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"}
    assert (first.architecture, second.architecture) == ("sm_86", "sm_120")
    environment = backends()["cuda"].visibility.environment
    assert environment and environment(first)["CUDA_VISIBLE_DEVICES"] == first.identity["uuid"]


def test_a_driver_that_is_too_old_is_named_with_the_one_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_library", lambda: Driver(11080))
    use(monkeypatch, Registry("CUDA"), log=INSUFFICIENT)
    with pytest.raises(DeviceAbsent, match=r"supports CUDA 11.8; this build needs CUDA 12.4 \(driver 550 or later\)"):
        listed("cuda")


class LevelZero:
    """The Level Zero loader, with one driver and cards: (name, UUID)."""

    def __init__(self, *cards: tuple[str, bytes], result: int = 0) -> None:
        self.cards, self.result = cards, result

    def zeInit(self, flags: int) -> int:  # noqa: N802 (Level Zero's name)
        return self.result

    def zeDriverGet(self, count: Any, handles: Any) -> int:  # noqa: N802
        count._obj.value = 1
        if handles:
            handles[0] = 7
        return 0

    def zeDeviceGet(self, driver: Any, count: Any, handles: Any) -> int:  # noqa: N802
        count._obj.value = len(self.cards)
        for number in range(len(self.cards) if handles else 0):
            handles[number] = 100 + number
        return 0

    def zeDeviceGetProperties(self, device: Any, properties: Any) -> int:  # noqa: N802
        name, uuid = self.cards[device.value - 100]
        properties._obj.name, properties._obj.uuid[:] = name.encode(), uuid
        return 0


ARC = "Intel(R) Arc(TM) A770 Graphics"


@pytest.mark.parametrize(
    ("loader", "uuids"),
    [
        (LevelZero((ARC, bytes(range(16))), (ARC, bytes(range(16, 32)))), 2),
        (LevelZero((ARC, bytes(range(16)))), 0),  # another number of cards: which is which is unknown
        (LevelZero((ARC, bytes(range(16))), ("Intel(R) UHD Graphics", bytes(range(16, 32)))), 0),
        (LevelZero(result=0x78000001), 0),
        (None, 0),
    ],
    ids=["both", "one", "other", "no driver", "no loader"],
)
def test_intel_s_cards_have_the_uuid_of_level_zero(
    loader: LevelZero | None, uuids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str) -> Any:
        if loader is None:
            raise OSError(name)
        return loader

    use(monkeypatch, Registry("SYCL", [("SYCL0", ARC, "", 1), ("SYCL1", ARC, "", 1)]), "sycl")
    monkeypatch.setattr(ctypes, "CDLL", opened)
    found = [device.identity.get("uuid") for device in listed("xpu")]
    assert len(set(filter(None, found))) == uuids
    assert not uuids or found[0] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_vulkan_s_software_is_the_processor_whatever_ggml_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    software = PhysicalDevice("llvmpipe", "emulated", None, None, 0x10005)
    card = PhysicalDevice("NVIDIA GeForce RTX 3060", "gpu", RTX, None, 0x10DE)
    monkeypatch.setattr(ggml_vulkan, "physical_devices", lambda: [software, card])
    monkeypatch.delenv(ggml_vulkan.VARIABLE, raising=False)
    use(monkeypatch, Registry("Vulkan", [("Vulkan0", "NVIDIA GeForce RTX 3060", RTX, 1)]), "vulkan")
    emulated, real = listed("vulkan")
    assert (emulated.kind, emulated.hardware_id, real.kind) == ("emulated", "cpu:0", "gpu")
    assert os.environ[ggml_vulkan.VARIABLE] == "0,1", "ggml would leave software out in this process"
    assert ggml_place("vulkan:1", real).name == "Vulkan0"
    monkeypatch.setenv(ggml_vulkan.VARIABLE, "1")
    assert listed("vulkan") == [real.__class__(**{**vars(real), "rank": 0})]
    monkeypatch.setenv(ggml_vulkan.VARIABLE, "")
    with pytest.raises(DeviceAbsent, match="hides every Vulkan device"):
        listed("vulkan")


def test_a_runtime_with_llama_cpp_alone_serves_no_engine_on_torch() -> None:
    assert set(llama_runtimes()) == {"llama-cuda", "llama-rocm", "llama-sycl", "llama-vulkan", "llama-metal", "base"}
    assert not set(llama_runtimes()) & set(RUNTIMES)
    others = {name for name, engine in engines().items() if {"llama-cuda", "llama-vulkan"} & set(engine.runtimes)}
    assert len(others) == 1


@pytest.mark.parametrize(
    ("runtime", "reached"),
    [
        ("base", ("mps",)),
        ("llama-cuda", ("cuda",)),
        ("llama-vulkan", ("vulkan",)),
        ("torch", ()),
        ("own", ("cuda", "rocm", "xpu", "mps", "vulkan")),
    ],
)
def test_a_runtime_lists_the_backends_that_its_build_is_for(runtime: str, reached: tuple[str, ...]) -> None:
    assert backends_of("ggml", runtime) == reached
