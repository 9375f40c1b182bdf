"""Devices through ONNX Runtime: providers by the library's own names, devices by `get_ep_devices`. All runs in a child.

Providers that are libraries of their own (`onnxruntime-ep-…`, or beside the library) are registered first, which names
what they miss. A backend's own file gives `PROVIDERS`: names of its provider in lower case without punctuation, as
`provider_key` makes them. `get_available_providers` is a list made at compile time and proves nothing; it only tells
which older providers, that list no devices, are worth a try.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.hardware.ids import luid_text
from backend.common.types import DeviceKind, Proof
from backend.devices import DeviceAbsent, backend_module
from backend.devices._mechanisms.identity import clean, hardware_id, pci_address, size

_NOT_A_PLUGIN = re.compile(r"CreateEpFactories|undefined symbol|procedure could not be found|error 127", re.IGNORECASE)
_registered: set[Path] = set()  # of this process: a second time is refused, and then ONNX Runtime 1.32 crashes
_KINDS: dict[str, DeviceKind] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}


def load(library: str) -> Any:
    """Imports ONNX Runtime. Raises ImportError, OSError."""
    return importlib.import_module(library)


def versions(library: str) -> dict[str, str]:
    """Versions of what is imported."""
    numpy, onnxruntime = importlib.import_module("numpy"), load(library)
    return {"onnxruntime": str(onnxruntime.__version__), "numpy": str(numpy.__version__)}


def enumerate_devices(backend: str, library: str) -> list[DetectedDevice]:
    """Devices that the backend's provider offers. Raises Absent with the reason."""
    onnxruntime, file = load(library), backend_module(backend)
    if hasattr(file, "processor"):
        return [file.processor(library, "CPUExecutionProvider")]
    troubles = register(onnxruntime, file)
    listed = ep_devices(onnxruntime, file.PROVIDERS)
    if listed:
        return [_found(library, file, position, listed) for position in range(len(listed))]
    old = next((name for name in _available(onnxruntime) if provider_key(name) in file.PROVIDERS), None)
    plain = [trouble for trouble in troubles if not _NOT_A_PLUGIN.search(trouble)]
    if plain:
        raise DeviceAbsent(f"the provider's library does not load: {plain[0]}")
    if old and not getattr(file, "LISTS_DEVICES", False):
        return [DetectedDevice(f"{file.BACKEND.label}", file.BACKEND.kind, None, None, None, library, provider=old)]
    if old or _provider_files(onnxruntime, file):
        raise DeviceAbsent(getattr(file, "NONE_LISTED", "its provider is there and lists no device"), quiet=not old)
    raise DeviceAbsent(f"onnxruntime {onnxruntime.__version__} has no such provider", quiet=True)


def prove(backend: str, found: DetectedDevice) -> Proof:
    """Computes on the device. Raises WrongResult, Absent, and what ONNX Runtime raises."""
    from backend.devices._mechanisms.onnx_proof import prove_place

    return prove_place(place(backend, found), versions(found.library))


def free_bytes(backend: str, found: DetectedDevice) -> int | None:
    """ONNX Runtime tells no free memory of a device; the processor's is the machine's."""
    return found.memory_free_bytes


def place(backend: str, found: DetectedDevice, device: str = "") -> Any:
    """Takes a place on the device. Raises Absent."""
    from backend.devices._mechanisms.identity import chosen
    from backend.devices._mechanisms.onnx_placement import OnnxPlace

    onnxruntime, file = load(found.library), backend_module(backend)
    if hasattr(file, "processor") or (found.provider and not found.identity.get("listed")):
        return OnnxPlace(onnxruntime, device or backend, str(found.provider), None, file)
    register(onnxruntime, file)
    listed = ep_devices(onnxruntime, file.PROVIDERS)
    if not listed:
        raise DeviceAbsent(f"{found.name} was listed a moment ago and is gone")
    here = chosen(found, [_found(found.library, file, position, listed) for position in range(len(listed))])
    ep_device = listed[here.position]
    return OnnxPlace(onnxruntime, device or backend, str(ep_device.ep_name), ep_device, file)


def provider_key(name: str) -> str:
    """A provider's name without what differs between versions: `DmlExecutionProvider` and `DML` are `dml`."""
    return re.sub(r"[^a-z0-9]", "", re.sub("execution_?provider$", "", name.strip(), flags=re.IGNORECASE).lower())


def register(onnxruntime: Any, file: Any) -> list[str]:
    """Registers the backend's provider libraries that are installed; returns what those that fail say."""
    troubles: list[str] = []
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        return troubles
    if prepare := getattr(file, "prepare_library", None):
        prepare(onnxruntime)
    for path in _provider_files(onnxruntime, file):
        if path in _registered:
            return []
        try:
            onnxruntime.register_execution_provider_library(f"touchstone.{file.BACKEND.name}", str(path))
        except Exception as error:  # noqa: BLE001 (its exceptions share no base of their own)
            troubles.append(clean_trouble(error))
        else:
            _registered.add(path)
            return []
    return troubles


def ep_devices(onnxruntime: Any, providers: tuple[str, ...]) -> list[Any]:
    """The real devices of a provider, however its name is spelled; virtual ones can only compile."""
    if not hasattr(onnxruntime, "get_ep_devices"):
        return []
    return [
        device
        for device in onnxruntime.get_ep_devices()
        if provider_key(device.ep_name) in providers
        and str(dict(device.ep_metadata).get("is_virtual", dict(device.device.metadata).get("is_virtual", "0"))) != "1"
    ]


def clean_trouble(error: BaseException) -> str:
    """The library's words without its prefix."""
    return re.sub(r"^\[ONNXRuntimeError\]\s*:\s*\d+\s*:\s*\w+\s*:\s*", "", str(error)).strip() or type(error).__name__


def _available(onnxruntime: Any) -> list[str]:
    return [str(name) for name in onnxruntime.get_available_providers()]


def _provider_files(onnxruntime: Any, file: Any) -> list[Path]:
    """Libraries of the backend's provider: of plugin packages, and beside ONNX Runtime itself."""
    found: list[Path] = []
    for entry in pkgutil.iter_modules():
        if entry.name.startswith("onnxruntime_") and _stem_key(entry.name) in file.PROVIDERS:
            module = importlib.import_module(entry.name)
            if hasattr(module, "get_library_path"):
                found.append(Path(module.get_library_path()))
    folder = Path(onnxruntime.__file__).parent / "capi"
    pattern = "onnxruntime_providers_*.dll" if sys.platform == "win32" else "libonnxruntime_providers_*"
    for path in sorted(folder.glob(pattern)):
        if path.suffix in (".so", ".dll", ".dylib") and _stem_key(path.stem) in file.PROVIDERS:
            found.append(path)
    return found


def _stem_key(stem: str) -> str:
    return provider_key(re.sub(r"^(?:lib)?onnxruntime_(?:providers_|ep_)?", "", stem))


def _found(library: str, file: Any, position: int, listed: list[Any]) -> DetectedDevice:
    device = listed[position]
    told = {**dict(device.device.metadata), **dict(device.ep_metadata)}
    kind: DeviceKind = _KINDS.get(str(device.device.type).rpartition(".")[2], "gpu")
    identity = {"listed": "yes"}
    if address := pci_address(told.get("pci_bus_id", "")):
        identity["pci"] = address
    elif str(told.get("LUID", "")).isdigit():
        identity["luid"] = luid_text(int(told["LUID"]))
    if kind == "gpu" and str(told.get("Discrete", "1")) == "0":
        kind = "integrated"
    name = told.get("Description") or told.get("name") or device.ep_name
    found = DetectedDevice(
        name=clean(name),
        kind=kind,
        hardware_id="cpu:0" if kind == "cpu" else hardware_id(identity),
        memory_bytes=size(told.get("DxgiVideoMemory")),
        memory_free_bytes=None,
        library=library,
        position=position,
        count=len(listed),
        identity=identity,
        provider=str(device.ep_name),
    )
    refine = getattr(file, "refine", None)
    refined: DetectedDevice = refine(found) if refine else found
    return refined
