"""Who serves a device: the first library of a kind that reaches its backend, and the device as that lists it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.errors import DeviceNotReady
from backend.devices import DeviceAbsent, backends, backends_of, libraries, mechanism, split_id


def served(device: str, found: DetectedDevice | None, kind: str, called: str) -> tuple[Any, str, DetectedDevice]:
    """The mechanism, the backend's name and the device; `kind` is how the libraries' names begin.

    Raises Absent where the library lists no such device, DeviceNotReady where none of the kind reaches the backend.
    """
    name, index = split_id(device)
    for library in libraries():
        if library.startswith(kind) and name in backends_of(library):
            here = mechanism(name, library)
            if found is None:
                listed = here.enumerate_devices(name, library)
                if index >= len(listed):
                    raise DeviceAbsent(f"{device} was asked for, and {len(listed)} such devices are listed")
                found = listed[index]
            return here, name, replace(found, library=library)
    raise DeviceNotReady(
        f"{called} does not reach {backends()[name].label}.", "Choose another device or another engine."
    )
