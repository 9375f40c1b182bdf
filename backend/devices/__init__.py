"""Backends: one file a way to reach hardware. A new backend is a new file here.

A backend file has `BACKEND: Backend`; one that this version can reach also has `enumerate_devices` and `prove`, which
run in a child. Third-party imports stand inside functions: the server reads the facts without the libraries.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

from backend.types import DeviceKind, Proof

INDEX_LIMIT = 64  # ids NAME:0 … NAME:63 are well formed


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


@dataclass(frozen=True)
class Found:
    """One device as a backend's own library lists it, before anything was computed on it."""

    index: int
    name: str
    kind: DeviceKind
    hardware_id: str | None
    memory_bytes: int | None
    memory_free_bytes: int | None


class WrongResult(Exception):
    """The device computed, and the numbers were wrong."""


@cache
def backends() -> dict[str, Backend]:
    """Facts of all backends by name, found by listing this folder."""
    return {module.BACKEND.name: module.BACKEND for module in _modules()}


@cache
def reachable(runtime: str) -> tuple[str, ...]:
    """Names of the backends that have code to enumerate and prove their devices in this runtime."""
    return tuple(m.BACKEND.name for m in _modules() if hasattr(m, "prove") and runtime in m.BACKEND.runtimes)


def enumerate_devices(name: str) -> list[Found]:
    """Devices that the backend's library lists. Runs in a child."""
    found: list[Found] = _module(name).enumerate_devices()
    return found


def prove(name: str, index: int) -> Proof:
    """Computes on the device and compares with a reference. Runs in a child. Raises WrongResult."""
    proof: Proof = _module(name).prove(index)
    return proof


def device_id(backend: Backend, index: int) -> str:
    """`cpu` for the one device of a backend that has but one, `cuda:0` for the others."""
    return f"{backend.name}:{index}" if backend.indexed or index else backend.name


def _module(name: str) -> Any:
    return next(module for module in _modules() if module.BACKEND.name == name)


@cache
def _modules() -> tuple[Any, ...]:
    names = sorted(entry.name for entry in pkgutil.iter_modules(__path__) if not entry.name.startswith("_"))
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)
