"""Devices through torch, and through what extends it. All functions run in a child.

The protocol of a mechanism: `load` imports the library, `enumerate_devices` lists, `prove` computes. A backend's
own file says what torch's build must be, how its devices are listed, and how a place on one is taken:
`list_devices(torch) -> list[DetectedDevice]` and `take_place(torch, found) -> Ground`, both raising Absent.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.types import Proof
from backend.devices import backend_module


@dataclass(frozen=True)
class TorchAccess:
    """Where tensors can be put. `allocated_bytes` is None where the library counts nothing.

    `number` is the type that models compute in there, the shortest that it does well. `plain`: only plain arithmetic
    and slices are to be asked of it; indexing by tensors, sorting and running sums are left to the processor.
    """

    torch: Any
    device: Any
    type: str  # what a tensor there says of itself
    synchronize: Callable[[], None]
    allocated_bytes: Callable[[], int] | None
    free_bytes: Callable[[], int | None] = lambda: None
    number: str = "bfloat16"
    plain: bool = False
    records: bool = False  # whether what it is told to do can be recorded and played, as `torch.cuda` does


def load(library: str) -> Any:
    """Imports torch, and what extends it. Raises ImportError, OSError, and whatever a broken build raises."""
    torch = importlib.import_module("torch")
    if library != "torch":
        importlib.import_module(library)
    return torch


def versions(library: str) -> dict[str, str]:
    """Versions of what is imported."""
    torch = importlib.import_module("torch")
    found = {"torch": str(getattr(torch, "__version__", "unknown"))}
    build = getattr(torch, "version", None)
    for name in ("cuda", "hip", "xpu"):
        if number := getattr(build, name, None):
            found[name] = str(number)
    return found


def enumerate_devices(backend: str, library: str) -> list[DetectedDevice]:
    """Devices as torch lists them. Raises Absent."""
    found: list[DetectedDevice] = backend_module(backend).list_devices(load(library))
    return found


def prove(backend: str, found: DetectedDevice) -> Proof:
    """Computes on the device. Raises WrongResult, Absent, and what torch raises."""
    from backend.devices._mechanisms.torch_proof import prove_ground

    return prove_ground(ground(backend, found), versions(found.library))


def free_bytes(backend: str, found: DetectedDevice) -> int | None:
    """Free memory of the device, where torch tells."""
    return ground(backend, found).free_bytes()


def ground(backend: str, found: DetectedDevice) -> TorchAccess:
    """Takes a place on the device. Raises Absent."""
    taken: TorchAccess = backend_module(backend).take_place(load(found.library), found)
    return taken


def device_named(torch: Any, type: str, index: int) -> Any:
    """The device as `tensor.to` takes it."""
    return torch.device(type, index) if hasattr(torch, "device") else f"{type}:{index}"


def short_number(module: Any) -> str:
    """What cards of `torch.cuda` or `torch.xpu` compute well: bfloat16 if they have it themselves, else float16."""
    has = getattr(module, "is_bf16_supported", None)
    return "bfloat16" if has and has(including_emulation=False) else "float16"


def build_name(torch: Any) -> str:
    """What this torch was built for, in words."""
    build = getattr(torch, "version", None)
    for name, words in (("hip", "ROCm (HIP {})"), ("cuda", "CUDA {}"), ("xpu", "Intel XPU {}")):
        if number := getattr(build, name, None):
            return f"torch {getattr(torch, '__version__', 'of an unknown version')}, built for " + words.format(number)
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is not None and mps.is_built():
        return f"torch {getattr(torch, '__version__', 'of an unknown version')}, built for Apple's GPU"
    return f"torch {getattr(torch, '__version__', 'of an unknown version')}, built for the processor alone"


def seconds_of(work: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """How long the device takes for it."""
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start
