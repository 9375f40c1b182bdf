"""Device resolution: from the name that a caller uses (id, alias, `auto`) to one device id, with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from backend.common.commands import command
from backend.common.errors import UnknownDevice, Validation
from backend.common.types import Device, Hardware
from backend.devices import INDEX_LIMIT, Backend, backends, device_id, split_id
from backend.scheduling.ranking import ANY, RankingQuery, by_preference, explain_choice, explain_engine

_INDEXED = re.compile(r"(.+):(0|[1-9]\d{0,3})")
GENERAL = ("auto", "gpu", "npu")


@dataclass(frozen=True)
class Resolution:
    """The device that a name means, and why.

    `resolved` is None if no device is ready for `gpu` or `npu`. `engine` is set by aliases that name one.
    """

    resolved: str | None
    reason: str
    engine: str | None = None


@dataclass(frozen=True)
class _ParsedName:
    """A name of a device: its backend, its index if it has one, and the engine if it is an engine's alias."""

    backend: Backend
    index: int | None
    engine: str | None = None


def resolve(
    asked: str,
    devices: Mapping[str, Device],
    hardware: Iterable[Hardware],
    *,
    task: str,
    engine: str | None,
    query: RankingQuery = ANY,
) -> Resolution:
    """Return the device for `asked` among `devices` (all known ones, by id), ranked by the query's measurements.

    Raises UnknownDevice with the valid ids, and Validation where an alias names another engine than `engine`.
    """
    name = _parse_name(asked, task, engine, lambda: devices)
    if name is None:
        resolution = _resolve_general(asked.strip().lower(), devices, task, query)
    elif name.engine:
        target = device_id(name.backend, 0)
        reason = f"{asked!r} is another name for {target} with the engine {name.engine}."
        resolution = Resolution(target, reason, name.engine)
    else:
        resolution = _resolve_backend(asked, name, devices, hardware)
    device = devices.get(resolution.resolved or "")
    if asked.strip().lower() == "auto" or device is None or resolution.engine:
        return resolution
    return replace(resolution, reason=resolution.reason + explain_engine(device, query))


def check_device_name(asked: str, task: str, engine: str | None, known: Callable[[], Iterable[str]]) -> None:
    """Check that a name means a device, without choosing one. Raises UnknownDevice, Validation.

    `known` is called for the ids of known devices only if the name is unknown.
    """
    _parse_name(asked, task, engine, known)


def apply_default(asked: str, default: str) -> str:
    """Return the device that the settings name instead of `auto`; any other name as it is."""
    return default if asked.strip().lower() == "auto" else asked


def _parse_name(asked: str, task: str, engine: str | None, known: Callable[[], Iterable[str]]) -> _ParsedName | None:
    """Parse a name; None for one of GENERAL. Raises UnknownDevice, Validation."""
    word = asked.strip().lower()
    if word in GENERAL:
        return None
    base, index = (match[1], int(match[2])) if (match := _INDEXED.fullmatch(word)) else (word, None)
    for backend in backends().values():
        alias_engine = _engine_of_alias(backend, word, task)
        if alias_engine and engine and engine != alias_engine:
            raise Validation(
                f"Device {asked!r} means the engine {alias_engine!r}, but engine {engine!r} was requested.",
                "Leave one of the two out.",
            )
        if alias_engine:
            return _ParsedName(backend, None, alias_engine)
        if base == backend.name or base in {alias.lower() for alias in backend.aliases}:
            if index is not None and index >= INDEX_LIMIT:
                break
            return _ParsedName(backend, index)
    raise unknown_device(asked, known())


def unknown_device(asked: str, known: Iterable[str]) -> UnknownDevice:
    """Return the error for a name that means no device of any backend; `known` are the ids of known devices."""
    valid = ["auto", *known]
    return UnknownDevice(
        f"{asked[:100]!r} names no device.",
        f"Use one of: {', '.join(valid)}. Other names: see the API's documentation.",
        valid=valid,
    )


def in_order(device: Device) -> tuple[bool, int, tuple[str, int]]:
    """Return the sort key of the device list: the CPU first, then by the documented order and the index."""
    backend = backends()[device.backend]
    return backend.kind != "cpu", backend.rank, split_id(device.id)


def unreachable(device: str, backend: Backend) -> Device:
    """Return the `unavailable` Device for a well-formed id without hardware behind it."""
    reason = f"No {backend.label} device was found through any runtime that this version can use."
    remedy = (
        f"Use the CPU, or use auto. `{command('doctor --missing')}` shows what the system, the driver and each "
        "runtime reported."
    )
    if backend.successor:
        reason = f"{backend.label} is no longer developed, and no runtime of this version has it."
        remedy = f"Use {backend.successor}: `{command(f'runtimes install {backend.successor}')}`."
    return Device(
        id=device,
        name=f"{backend.label} (not found)",
        backend=backend.name,
        kind=backend.kind,
        state="unavailable",
        runtimes=list(backend.runtimes),
        reason=reason,
        remedy=remedy,
        aliases=list(backend.aliases),
    )


def _resolve_general(word: str, devices: Mapping[str, Device], task: str, query: RankingQuery) -> Resolution:
    """Return the best ready device for one of GENERAL."""
    ordered = by_preference(devices.values(), task, query)
    if word == "auto":
        if not ordered:
            return Resolution("cpu", "No device is ready, so the CPU was chosen.")
        return Resolution(ordered[0].id, explain_choice(ordered, query))
    kinds = {"gpu": ("gpu", "integrated"), "npu": ("npu",)}[word]
    fitting = sorted((d for d in ordered if d.kind in kinds), key=lambda d: kinds.index(d.kind))
    if not fitting:
        return Resolution(None, f"No {word.upper()} is ready.")
    return Resolution(fitting[0].id, f"{fitting[0].id} is the first ready {word.upper()}.")


def _resolve_backend(
    asked: str, name: _ParsedName, devices: Mapping[str, Device], hardware: Iterable[Hardware]
) -> Resolution:
    """Return the device of a backend with this index; without an index its first ready one, or 0."""
    backend = name.backend
    vendors = {(item.vendor or "").upper() for item in hardware if item.kind != "cpu"}
    if backend.name == "cuda" and "AMD" in vendors and "NVIDIA" not in vendors:
        backend = backends()["rocm"]
        note = f"{asked!r} means ROCm here, since the machine has AMD and no NVIDIA hardware"
    else:
        note = f"{asked!r} was requested"
    if name.index is not None:
        return Resolution(device_id(backend, name.index), f"{note}.")
    ready = [d.id for d in sorted(devices.values(), key=in_order) if d.backend == backend.name and d.state == "ready"]
    target = ready[0] if ready else device_id(backend, 0)
    return Resolution(target, f"{note}." if target == asked else f"{note}: that is {target}.")


def _engine_of_alias(backend: Backend, word: str, task: str) -> str | None:
    """Return the engine that an alias of the backend names for the task, None for any other word."""
    for alias, alias_task, engine in backend.engine_aliases:
        if alias.lower() == word and alias_task in (task, "*"):
            return engine
    return None
