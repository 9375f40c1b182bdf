"""The registry of backends: the files of this folder, and the mechanisms that reach their devices."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

from backend.common.device_api import Backend, DetectedDevice, Mechanism, Prover
from backend.common.types import Proof
from backend.devices._mechanisms import ggml, ggml_proof, onnx, onnx_proof, torch, torch_proof
from backend.devices._mechanisms.llama_builds import LIBRARY, find_build

INDEX_LIMIT = 64  # valid ids are NAME:0 to NAME:63


@cache
def backends() -> dict[str, Backend]:
    """Return all backends by name: one per file of this folder."""
    package, folder = __name__.rpartition(".")[0], str(Path(__file__).parent)
    names = sorted(entry.name for entry in pkgutil.iter_modules([folder]) if not entry.name.startswith("_"))
    declared: list[Backend] = [importlib.import_module(f"{package}.{name}").BACKEND for name in names]
    return {backend.name: backend for backend in declared}


@cache
def libraries() -> tuple[str, ...]:
    """Return the import names of all libraries that reach the devices of some backend."""
    return tuple(dict.fromkeys(library for backend in backends().values() for library in backend.libraries))


def backends_of(library: str, runtime: str | None = None) -> tuple[str, ...]:
    """Return the names of the backends that a library reaches: the processor, then by rank.

    `runtime`: optional. In a runtime that names its libraries, one that reaches a backend in another runtime alone is
    left out: `base` holds llama.cpp for the processor.
    """
    reached = [backend for backend in backends().values() if library in backend.libraries]
    if runtime and library == LIBRARY and any(runtime in backend.runtimes for backend in backends().values()):
        reached = [backend for backend in reached if backend.ggml and runtime in backend.ggml.runtimes]
    return tuple(backend.name for backend in sorted(reached, key=lambda backend: (backend.kind != "cpu", backend.rank)))


def llama_runtimes() -> tuple[str, ...]:
    """Return the runtimes whose environments hold a build of llama.cpp for cards."""
    return tuple(
        dict.fromkeys(name for backend in backends().values() if backend.ggml for name in backend.ggml.runtimes)
    )


def library_of(backend: str) -> str:
    """Return the preferred library of a backend."""
    return backends()[backend].libraries[0]


def is_installed(library: str) -> bool:
    """Return whether this environment has a library, or a broken one, without importing it."""
    if any(backend.ggml and backend.ggml.library == library for backend in backends().values()):
        return find_build() is not None
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        return True  # it is installed and broken: the import shows how


def mechanism(backend: str, library: str) -> Mechanism:
    """Return the module that lists a backend's devices through a library."""
    return _mechanism_and_prover(backends()[backend], library)[0]


def prove(backend: str, detected: DetectedDevice, on_step: Callable[[str], None] = lambda _: None) -> Proof:
    """Compute on the device and compare with references.

    `on_step`: optional, called with each data type before it is checked. Raises WrongResult, DeviceAbsent, and what the
    library raises.
    """
    facts = backends()[backend]
    return _mechanism_and_prover(facts, detected.library)[1].prove(facts, detected, on_step)


def has_compile_cache(backend: str) -> bool:
    """Return whether compiled code for a backend can be kept in a folder."""
    return backends()[backend].has_compile_cache


def known_options(backend: str) -> tuple[str, ...]:
    """Return the provider options of a backend in ONNX Runtime; empty if another library reaches it."""
    onnx_provider = backends()[backend].onnx
    return onnx_provider.options if onnx_provider else ()


@lru_cache(1024)  # sort keys need it for each job
def split_id(device: str) -> tuple[str, int]:
    """Return backend and index of a device id."""
    backend, _, index = device.partition(":")
    return backend, int(index or 0)


def device_id(backend: Backend, index: int) -> str:
    """Return `cpu` for a backend with a single device, `cuda:0` for others."""
    return f"{backend.name}:{index}" if backend.indexed or index else backend.name


def _mechanism_and_prover(backend: Backend, library: str) -> tuple[Mechanism, Prover]:
    if backend.onnx and backend.onnx.library == library:
        return onnx, onnx_proof
    if backend.torch and backend.torch.library == library:
        return torch, torch_proof
    if backend.ggml and backend.ggml.library == library:
        return ggml, ggml_proof
    raise KeyError(f"{library} does not reach {backend.name}")
