"""From the word a caller uses for a device (id, alias, `auto`) to one device id, with the reason in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from backend.common.errors import UnknownDevice, Validation
from backend.common.types import Device, Hardware
from backend.devices import INDEX_LIMIT, Backend, backends, device_id, split_id
from backend.scheduling.ranking import ANY, RankingQuery, by_preference, explain_choice, explain_engine

_INDEXED = re.compile(r"(.+):(0|[1-9]\d{0,3})")
GENERAL = ("auto", "gpu", "npu")


@dataclass(frozen=True)
class Resolution:
    """`resolved` is None where nothing stands behind `gpu` or `npu`."""

    resolved: str | None
    reason: str
    engine: str | None = None


def resolve(
    asked: str,
    devices: Mapping[str, Device],
    hardware: Iterable[Hardware],
    *,
    task: str,
    engine: str | None,
    wish: RankingQuery = ANY,
) -> Resolution:
    """Finds the device for `asked` among `devices` (all known, by id), by what was measured with the wish's model.

    Raises UnknownDevice with the valid ids, and Validation where an alias names another engine than `engine`.
    """
    word = asked.strip().lower()
    if word in GENERAL:
        found = _general(word, devices, task, wish)
    else:
        found = _named(asked, word, devices, hardware, task, engine)
    device = devices.get(found.resolved or "")
    if word == "auto" or device is None or found.engine:
        return found
    return replace(found, reason=found.reason + explain_engine(device, wish))


def _named(
    asked: str,
    word: str,
    devices: Mapping[str, Device],
    hardware: Iterable[Hardware],
    task: str,
    engine: str | None,
) -> Resolution:
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


def in_order(device: Device) -> tuple[bool, int, tuple[str, int]]:
    """The order of the device list: the processor, then by the documented order and the index."""
    backend = backends()[device.backend]
    return backend.kind != "cpu", backend.rank, split_id(device.id)


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


def _general(word: str, devices: Mapping[str, Device], task: str, wish: RankingQuery) -> Resolution:
    ordered = by_preference(devices.values(), task, wish)
    if word == "auto":
        if not ordered:
            return Resolution("cpu", "No device is ready, so the CPU is asked.")
        return Resolution(ordered[0].id, explain_choice(ordered, wish))
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
