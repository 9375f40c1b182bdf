"""From the word a caller uses for a device (id, alias, `auto`) to one device id, with the reason in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backend.devices import INDEX_LIMIT, Backend, backends, device_id, split_id
from backend.errors import UnknownDevice, Validation
from backend.types import Device, Hardware

_INDEXED = re.compile(r"(.+):(0|[1-9]\d{0,3})")
GENERAL = ("auto", "gpu", "npu")


@dataclass(frozen=True)
class Resolution:
    """`resolved` is None where nothing stands behind `gpu` or `npu`."""

    resolved: str | None
    reason: str
    engine: str | None = None


def resolve(
    asked: str, devices: Mapping[str, Device], hardware: Iterable[Hardware], *, task: str, engine: str | None
) -> Resolution:
    """Finds the device for `asked` among `devices` (all known, by id).

    Raises UnknownDevice with the valid ids, and Validation where an alias names another engine than `engine`.
    """
    word = asked.strip().lower()
    if word in GENERAL:
        return _general(word, devices, task)
    base, index = (match[1], int(match[2])) if (match := _INDEXED.fullmatch(word)) else (word, None)
    for backend in backends().values():
        named = _engine_of_alias(backend, word, task)
        if named and engine and engine != named:
            raise Validation(
                f"Device {asked!r} means the engine {named!r}, but engine {engine!r} was asked for.",
                "Leave one of the two out.",
            )
        if named:
            target = device_id(backend, 0)
            return Resolution(target, f"{asked!r} is another name for {target} with the engine {named}.", named)
        if base == backend.name or base in {alias.lower() for alias in backend.aliases}:
            return _of_backend(asked, backend, index, devices, hardware)
    raise unknown_device(asked, devices)


def unknown_device(asked: str, devices: Mapping[str, Device]) -> UnknownDevice:
    """The refusal for a word that names no device of any backend."""
    valid = ["auto", *devices]
    return UnknownDevice(
        f"{asked[:100]!r} names no device.",
        f"Use one of: {', '.join(valid)}. Other names: see the API's documentation.",
        valid=valid,
    )


def by_preference(devices: Iterable[Device], task: str) -> list[Device]:
    """Ready devices with an engine for the task, best first; emulated ones are never chosen by themselves.

    The documented order, except that what was measured slower than the processor comes after it, and so does what may
    not lead before it was measured with the model.
    """
    ready = [d for d in devices if d.state == "ready" and d.kind != "emulated" and task in d.tasks]
    return sorted(ready, key=lambda d: (_behind(d), backends()[d.backend].rank, split_id(d.id)))


def in_order(device: Device) -> tuple[bool, int, tuple[str, int]]:
    """The order of the device list: the processor, then by the documented order and the index."""
    backend = backends()[device.backend]
    return backend.kind != "cpu", backend.rank, split_id(device.id)


def _behind(device: Device) -> bool:
    return device.note is not None or not (backends()[device.backend].leads_unmeasured or device.speed)


def unreachable(device: str, backend: Backend) -> Device:
    """The Device for a well-formed id with nothing behind it."""
    return Device(
        id=device,
        name=f"{backend.label} (not found)",
        backend=backend.name,
        kind=backend.kind,
        state="unavailable",
        runtimes=list(backend.runtimes),
        reason=f"No {backend.label} device was found through any runtime that this version can use.",
        remedy="Use the CPU, or ask for auto; the README's table says which devices this version can reach.",
        aliases=list(backend.aliases),
    )


def _general(word: str, devices: Mapping[str, Device], task: str) -> Resolution:
    ordered = by_preference(devices.values(), task)
    if word == "auto":
        if not ordered:
            return Resolution("cpu", "No device is ready, so the CPU is asked.")
        others = len(ordered) - 1
        why = (
            "it is the only device that is ready"
            if not others
            else "it comes first in the documented order, in which devices slower than the CPU come last"
        )
        return Resolution(ordered[0].id, f"{ordered[0].name} was chosen because {why}.")
    kinds = {"gpu": ("gpu", "integrated"), "npu": ("npu",)}[word]
    fitting = sorted((d for d in ordered if d.kind in kinds), key=lambda d: kinds.index(d.kind))
    if not fitting:
        return Resolution(None, f"No {word.upper()} is ready.")
    return Resolution(fitting[0].id, f"{fitting[0].id} is the first ready {word.upper()}.")


def _of_backend(
    asked: str, backend: Backend, index: int | None, devices: Mapping[str, Device], hardware: Iterable[Hardware]
) -> Resolution:
    vendors = {(item.vendor or "").upper() for item in hardware if item.kind != "cpu"}
    if backend.name == "cuda" and "AMD" in vendors and "NVIDIA" not in vendors:
        backend = backends()["rocm"]
        note = f"{asked!r} means ROCm here, since the machine has AMD and no NVIDIA hardware"
    else:
        note = f"{asked!r} was asked for"
    if index is not None:
        if index >= INDEX_LIMIT:
            raise unknown_device(asked, devices)
        return Resolution(device_id(backend, index), f"{note}.")
    ready = [d.id for d in sorted(devices.values(), key=in_order) if d.backend == backend.name and d.state == "ready"]
    target = ready[0] if ready else device_id(backend, 0)
    return Resolution(target, f"{note}." if target == asked else f"{note}: that is {target}.")


def _engine_of_alias(backend: Backend, word: str, task: str) -> str | None:
    for alias, wanted, engine in backend.engine_aliases:
        if alias.lower() == word and wanted in (task, "*"):
            return engine
    return None
