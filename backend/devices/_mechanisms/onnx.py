"""Devices through ONNX Runtime: providers by the library's names, devices by `get_ep_devices`. Runs in a child process.

Providers that are separate libraries (`onnxruntime-ep-…`, or next to ONNX Runtime) are registered first; a failing
registration names what is missing. `get_available_providers` is a list made at compile time and proves nothing. It only
shows which older providers, which list no devices, are worth a try.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from backend.common.clean_text import clean_name
from backend.common.device_api import Backend, DetectedDevice, DeviceAbsent, OnnxProvider
from backend.common.hardware.ids import luid_text
from backend.common.types import DeviceKind
from backend.devices._mechanisms.card_list import describe_all
from backend.devices._mechanisms.identity import hardware_id, match_device, pci_address, size, with_ranks
from backend.devices._mechanisms.onnx_placement import OnnxPlace
from backend.devices._mechanisms.software_adapters import is_software

_NOT_A_PLUGIN = re.compile(r"CreateEpFactories|undefined symbol|procedure could not be found|error 127", re.IGNORECASE)
_registered: set[Path] = set()  # in this process: ONNX Runtime 1.32 refuses a second registration, then crashes
_NAME_KEYS = ("Description", "name", "FULL_DEVICE_NAME")
_MEMORY_KEYS = ("DxgiVideoMemory", "GPU_DEVICE_TOTAL_MEM_SIZE", "NPU_DEVICE_TOTAL_MEM_SIZE")
_KINDS: dict[str, DeviceKind] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}


def load(library: str) -> Any:
    """Import ONNX Runtime. Raises ImportError, OSError."""
    return importlib.import_module(library)


def versions(library: str) -> dict[str, str]:
    """Return the versions of ONNX Runtime and NumPy."""
    numpy, onnxruntime = importlib.import_module("numpy"), load(library)
    return {"onnxruntime": str(onnxruntime.__version__), "numpy": str(numpy.__version__)}


def enumerate_devices(backend: Backend, library: str) -> list[DetectedDevice]:
    """List the devices of the backend's provider. Raises DeviceAbsent with the reason."""
    onnxruntime, provider = load(library), _provider(backend)
    if provider.only_device:
        return [provider.only_device()]
    errors = _register_plugins(onnxruntime, backend.name, provider)
    ep_devices = _ep_devices(onnxruntime, provider.names)
    if ep_devices:
        return with_ranks(_described(provider, ep_devices))
    available = (str(name) for name in onnxruntime.get_available_providers())
    built_in = next((name for name in available if provider_key(name) in provider.names), None)
    load_errors = [error for error in errors if not _NOT_A_PLUGIN.search(error)]
    if load_errors:
        raise DeviceAbsent(f"the provider's library does not load: {load_errors[0]}")
    if built_in and not provider.lists_devices:
        return [DetectedDevice(backend.label, backend.kind, None, None, None, library, provider=built_in)]
    if built_in or _provider_files(onnxruntime, provider):
        raise DeviceAbsent(provider.none_listed, quiet=not built_in)
    raise DeviceAbsent(f"onnxruntime {onnxruntime.__version__} has no such provider", quiet=True)


def free_bytes(backend: Backend, detected: DetectedDevice) -> int | None:
    """Return the processor's free memory, None for other devices: ONNX Runtime does not report it."""
    return detected.memory_free_bytes


def open_device(backend: Backend, detected: DetectedDevice, device: str = "") -> OnnxPlace:
    """Open a device. `device`: optional, its id for placements. Default: the backend's name. Raises DeviceAbsent."""
    onnxruntime, provider = load(detected.library), _provider(backend)
    id_ = device or backend.name
    if provider.only_device or (detected.provider and not detected.identity.get("listed")):
        return OnnxPlace(onnxruntime, id_, str(detected.provider), None, provider)
    _register_plugins(onnxruntime, backend.name, provider)
    ep_devices = _ep_devices(onnxruntime, provider.names)
    if not ep_devices:
        raise DeviceAbsent(f"{detected.name} was listed a moment ago and is gone")
    listed = _described(provider, ep_devices)  # no variable hides a device from this list
    ep_device = ep_devices[match_device(detected, listed, masked=False).position]
    return OnnxPlace(onnxruntime, id_, str(ep_device.ep_name), ep_device, provider)


def provider_key(name: str) -> str:
    """Return a provider's name in the form of `OnnxProvider.names`: `DmlExecutionProvider` and `DML` become `dml`."""
    return re.sub(r"[^a-z0-9]", "", re.sub("execution_?provider$", "", name.strip(), flags=re.IGNORECASE).lower())


def clean_error_text(error: BaseException) -> str:
    """Return the text of an ONNX Runtime exception without its prefix."""
    return re.sub(r"^\[ONNXRuntimeError\]\s*:\s*\d+\s*:\s*\w+\s*:\s*", "", str(error)).strip() or type(error).__name__


def _provider(backend: Backend) -> OnnxProvider:
    if backend.onnx is None:
        raise DeviceAbsent(f"ONNX Runtime does not reach {backend.label}")
    return backend.onnx


def _register_plugins(onnxruntime: Any, name: str, provider: OnnxProvider) -> list[str]:
    """Register the provider's installed libraries. Returns the errors, empty as soon as one is registered."""
    errors: list[str] = []
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        return errors
    if provider.prepare_library:
        provider.prepare_library(onnxruntime)
    for path in _provider_files(onnxruntime, provider):
        if path in _registered:
            return []
        try:
            onnxruntime.register_execution_provider_library(f"touchstone.{name}", str(path))
        except Exception as error:  # noqa: BLE001 (its exceptions have no common base class)
            errors.append(clean_error_text(error))
        else:
            _registered.add(path)
            return []
    return errors


def _ep_devices(onnxruntime: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the physical devices of a provider, however its name is spelled. Virtual ones can only compile."""
    if not hasattr(onnxruntime, "get_ep_devices"):
        return []
    return [
        device
        for device in onnxruntime.get_ep_devices()
        if provider_key(device.ep_name) in names
        and str(dict(device.ep_metadata).get("is_virtual", dict(device.device.metadata).get("is_virtual", "0"))) != "1"
    ]


def _provider_files(onnxruntime: Any, provider: OnnxProvider) -> list[Path]:
    """Return the provider's libraries: those of plug-in packages, then those in ONNX Runtime's own folder."""
    files: list[Path] = []
    for name in _plugin_packages():
        if _stem_key(name) in provider.names:
            module = importlib.import_module(name)
            if hasattr(module, "get_library_path"):
                files.append(Path(module.get_library_path()))
    folder = Path(onnxruntime.__file__).parent / "capi"
    pattern = "onnxruntime_providers_*.dll" if sys.platform == "win32" else "libonnxruntime_providers_*"
    for path in sorted(folder.glob(pattern)):
        if path.suffix in (".so", ".dll", ".dylib") and _stem_key(path.stem) in provider.names:
            files.append(path)
    return files


@cache
def _plugin_packages() -> list[str]:
    """Return the installed packages that may hold a provider. Kept: each search reads every folder of the path."""
    return [entry.name for entry in pkgutil.iter_modules() if entry.name.startswith("onnxruntime_")]


def _stem_key(stem: str) -> str:
    return provider_key(re.sub(r"^(?:lib)?onnxruntime_(?:providers_|ep_)?", "", stem))


def _described(provider: OnnxProvider, ep_devices: list[Any]) -> list[DetectedDevice]:
    count = len(ep_devices)
    return describe_all(
        lambda position: _describe_device(provider, position, ep_devices), count, "ONNX Runtime", provider.library
    )


def _describe_device(provider: OnnxProvider, position: int, ep_devices: list[Any]) -> DetectedDevice:
    """Describe a device by ONNX Runtime's metadata.

    On Windows its keys are Description, LUID, Discrete, DxgiAdapterNumber, DxgiHighPerformanceIndex and
    DxgiVideoMemory, for example "8031 MB" with MB = 2^20 bytes; on Linux pci_bus_id and Discrete
    (core/platform/windows/device_discovery.cc and core/platform/linux/device_discovery.cc). OpenVINO's provider adds
    the properties of its devices, such as FULL_DEVICE_NAME. The devices come from an unordered set, so their order is
    arbitrary (core/platform/device_discovery_common.cc).
    """
    ep_device = ep_devices[position]
    hardware = ep_device.device
    metadata = {**dict(hardware.metadata), **dict(ep_device.ep_metadata)}
    kind: DeviceKind = _KINDS.get(str(hardware.type).rpartition(".")[2], "gpu")
    identity = {"listed": "yes"}
    if address := pci_address(metadata.get("pci_bus_id", "")):
        identity["pci"] = address
    if luid := _luid(metadata):
        identity["luid"] = luid
    if kind == "gpu" and str(metadata.get("Discrete", "1")) == "0":
        kind = "integrated"
    name = clean_name(next((metadata[key] for key in _NAME_KEYS if metadata.get(key)), ep_device.ep_name))
    if kind != "cpu" and is_software(name, _number(hardware, "vendor_id"), _number(hardware, "device_id")):
        kind = "emulated"
    detected = DetectedDevice(
        name=name,
        kind=kind,
        hardware_id="cpu:0" if kind in ("cpu", "emulated") else hardware_id(identity),
        memory_bytes=next((found for key in _MEMORY_KEYS if (found := size(metadata.get(key)))), None),
        memory_free_bytes=None,
        library=provider.library,
        position=position,
        count=len(ep_devices),
        identity=identity,
        provider=str(ep_device.ep_name),
    )
    return provider.refine(detected) if provider.refine else detected


def _luid(metadata: Mapping[str, Any]) -> str | None:
    """Return the LUID, which Windows assigns at each start; None if it is missing or zero."""
    text = str(metadata.get("LUID", "")).strip()
    number = int(text, 0) if re.fullmatch(r"\d+|0x[0-9a-fA-F]+", text) else 0
    return luid_text(number) if number else None


def _number(hardware: Any, name: str) -> int | None:
    value = getattr(hardware, name, None)
    return value if isinstance(value, int) else None
