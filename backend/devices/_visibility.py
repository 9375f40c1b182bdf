"""Environment variables that show or hide devices. Set them before the library is imported."""

from __future__ import annotations

import os

from backend.common.device_api import DetectedDevice
from backend.devices._registry import backends


def show_all_devices() -> None:
    """Make this process see all devices, in the order of their addresses. Call it before a library is imported."""
    for name in visibility_variables():
        os.environ.pop(name, None)
    for backend in backends().values():
        os.environ.update(backend.visibility.for_listing)


def show_only(backend: str, detected: DetectedDevice | None) -> None:
    """Make this process see only one device. Call it before its library is imported."""
    show_all_devices()
    for other in backends().values():
        os.environ.update(other.visibility.hide_all)
    for name in visibility_variables(backend):
        os.environ.pop(name, None)
    environment = backends()[backend].visibility.environment
    if environment and detected:
        os.environ.update(environment(detected))


def visibility_variables(backend: str | None = None) -> tuple[str, ...]:
    """Return the names of the variables that hide or reorder devices: of one backend, by default of all."""
    chosen = backends().values() if backend is None else (backends()[backend],)
    return tuple(dict.fromkeys(name for each in chosen for name in each.visibility.variables))
