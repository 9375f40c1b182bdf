"""Backends: one file a way to reach hardware. A new backend is a new file here.

A backend file has `BACKEND: Backend` and `MECHANISMS`: by library, the module here that reaches its devices through it
(`_torch`, `_onnx`, `_ggml`). It may have `HIDING`, the variables that hide or reorder its devices; `HIDDEN`, values of
them that hide all; `LISTING`, variables for whoever lists or computes; and `environment(found)`, under which a process
sees one device alone; for ONNX Runtime also `PROOF_OPTIONS`, with which float32 is float32, `ROUNDS_INPUTS` where it
never is, and `COMPILES_SHAPES` where each shape of an input costs a compilation. Third-party imports stand inside
functions: the server reads the facts without the libraries. An engine takes its place on a device by `torch_place` or
`onnx_place` and knows no provider.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from backend.common.device_api import DetectedDevice as DetectedDevice
from backend.common.types import DeviceKind, Proof

if TYPE_CHECKING:
    from backend.devices._mechanisms.onnx_placement import OnnxPlace
    from backend.devices._mechanisms.torch_placement import TorchPlace

INDEX_LIMIT = 64  # ids NAME:0 … NAME:63 are well formed


@dataclass(frozen=True)
class InstallOffer:
    """A runtime that would make a backend usable, and the hardware it is for. What it is made of: `runtimes/data`."""

    runtime: str
    vendors: tuple[str, ...] = ()  # the makers of the hardware it drives; empty: any
    kinds: tuple[DeviceKind, ...] = ("gpu", "integrated")
    systems: tuple[str, ...] = ("linux", "win32", "darwin")
    architectures: tuple[str, ...] = ()  # beginnings of the chip's name, such as gfx11; empty: any


@dataclass(frozen=True)
class Backend:
    """The facts of a backend. `rank` orders automatic choice before anything is measured (lower first)."""

    name: str
    label: str
    kind: DeviceKind
    rank: int
    runtimes: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    engine_aliases: tuple[tuple[str, str, str], ...] = ()  # (alias, task or "*", engine): an alias that names an engine
    indexed: bool = True
    systems: tuple[str, ...] = ("linux", "win32", "darwin")  # sys.platform where one would expect it
    vendors: tuple[str, ...] = ()  # the makers of the hardware it drives, as the inventory writes them; empty: any
    offers: tuple[InstallOffer, ...] = ()
    leads_unmeasured: bool = True  # whether `auto` may choose it before anything was measured


class WrongResult(Exception):
    """The device computed, and the numbers were wrong, or it was not the device that computed."""


class DeviceAbsent(Exception):
    """The library works and has no such device, or the one that was listed is gone; the text says why.

    `quiet` where nobody would expect one: another build of the library would be needed, and no hardware asks for it.
    """

    def __init__(self, why: str, quiet: bool = False) -> None:
        super().__init__(why)
        self.quiet = quiet


@cache
def backends() -> dict[str, Backend]:
    """Facts of all backends by name, found by listing this folder."""
    return {module.BACKEND.name: module.BACKEND for module in _modules()}


@cache
def libraries() -> tuple[str, ...]:
    """Names of the libraries through which some backend reaches its devices, as they are imported."""
    return tuple(dict.fromkeys(name for module in _modules() for name in module.MECHANISMS))


def backends_of(library: str) -> tuple[str, ...]:
    """Names of the backends that reach devices through a library: the processor, then by rank."""
    found = [m.BACKEND for m in _modules() if library in m.MECHANISMS]
    return tuple(backend.name for backend in sorted(found, key=lambda backend: (backend.kind != "cpu", backend.rank)))


def library_of(backend: str) -> str:
    """The first library through which a backend reaches its devices."""
    return str(next(iter(_module(backend).MECHANISMS)))


def mechanism(backend: str, library: str) -> Any:
    """The module that reaches this backend's devices through a library (the protocol is in `_torch.py`)."""
    return importlib.import_module(f"{__name__}.{_module(backend).MECHANISMS[library]}")


def backend_module(backend: str) -> Any:
    """The backend's own file, for what its mechanism needs to know of it."""
    return _module(backend)


def has_compile_cache(backend: str) -> bool:
    """Whether what is compiled for it, by its provider or by torch, can be kept in a folder."""
    module = _module(backend)
    return hasattr(module, "cache_options") or bool(getattr(module, "COMPILES", False))


def show_all_devices() -> None:
    """Lets this process see all devices, in the order of their addresses. Must come before a library is imported."""
    for name in visibility_variables():
        os.environ.pop(name, None)
    for module in _modules():
        os.environ.update(getattr(module, "LISTING", {}))


def show_only(backend: str, found: DetectedDevice | None) -> None:
    """Lets this process see that device alone. Must come before its library is imported."""
    show_all_devices()
    for module in _modules():
        os.environ.update(getattr(module, "HIDDEN", {}))
    for name in visibility_variables(backend):
        os.environ.pop(name, None)
    make = getattr(_module(backend), "environment", None)
    os.environ.update(make(found) if make and found else {})


def visibility_variables(backend: str | None = None) -> tuple[str, ...]:
    """Names of the variables that hide or reorder devices: those of one backend, or of all."""
    modules = _modules() if backend is None else (_module(backend),)
    return tuple(dict.fromkeys(name for module in modules for name in getattr(module, "HIDING", ())))


def prove(backend: str, found: DetectedDevice) -> Proof:
    """Computes on the device and compares with references. Raises WrongResult, Absent, and what the library raises."""
    proof: Proof = mechanism(backend, found.library).prove(backend, found)
    return proof


def torch_place(device: str, found: DetectedDevice | None = None) -> TorchPlace:
    """Where an engine that uses torch puts its tensors. `found` is the device as listed (`LoadRequest.found`).

    Raises Absent where the device is gone, DeviceNotReady where torch does not reach that backend.
    """
    from backend.devices._mechanisms.torch_placement import open_place

    return open_place(device, found)


def onnx_place(
    device: str, found: DetectedDevice | None = None, options: Mapping[str, Any] | None = None, cache: str = ""
) -> OnnxPlace:
    """Where an engine that uses ONNX Runtime makes its sessions. `found` is the device as listed.

    `options` are the user's for the provider, as the settings have them (`known_options`); `cache` is a folder for what
    the provider compiles.
    Raises Absent where the device is gone, DeviceNotReady where ONNX Runtime does not reach that backend.
    """
    from backend.devices._mechanisms.onnx_placement import open_place

    return open_place(device, found, options or {}, cache)


def known_options(backend: str) -> tuple[str, ...]:
    """The options that ONNX Runtime's provider of a backend knows; none where it is reached by another library."""
    return tuple(getattr(_module(backend), "OPTIONS", ()))


def split_id(device: str) -> tuple[str, int]:
    """Backend and index of a device id."""
    backend, _, index = device.partition(":")
    return backend, int(index or 0)


def device_id(backend: Backend, index: int) -> str:
    """`cpu` for the one device of a backend that has but one, `cuda:0` for the others."""
    return f"{backend.name}:{index}" if backend.indexed or index else backend.name


def detected_device_from(fields: Mapping[str, Any]) -> DetectedDevice:
    """A DetectedDevice as it came over the wire."""
    return DetectedDevice(**fields)


def _module(name: str) -> Any:
    return next(module for module in _modules() if module.BACKEND.name == name)


@cache
def _modules() -> tuple[Any, ...]:
    names = sorted(entry.name for entry in pkgutil.iter_modules(__path__) if not entry.name.startswith("_"))
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)
