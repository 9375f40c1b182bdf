"""Devices that the user's environment variables hide, found by comparing what a runtime lists with and without them.

Ids do not depend on the variables, so all devices are listed and the hidden ones are not used. Where the library
reports no identity, names, memory and counts decide; if they cannot, no device of that name is used.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from backend.common.device_api import DetectedDevice
from backend.common.types import Device
from backend.devices import backends, hardware_id, uuid_text, visibility_variables
from backend.scheduling.probing.enumeration import Enumeration

CUDA = "CUDA_VISIBLE_DEVICES"
_REMEDY = "Restart the server without that variable, or add this card to it."
_OLD_INSTANCE = re.compile(r"MIG-GPU-[0-9a-f-]+/\d+/\d+", re.IGNORECASE)
_HIDES_ALL = ("", "-1", "NoDevFiles")  # the last is what NVIDIA's and Slurm's tools set for "no card"


@dataclass(frozen=True)
class Hiding:
    """Why a device is not used, and what to do."""

    reason: str
    remedy: str = _REMEDY


def instance_entries(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES that name MIG instances. CUDA shows a process only the first.

    As for CUDA, another entry ends the list, and a repeated one makes it empty.
    """
    entries = [entry.strip() for entry in environment.get(CUDA, "").split(",")]
    instances = list(itertools.takewhile(lambda entry: entry.startswith("MIG-"), entries))
    return instances if len(set(entries)) == len(entries) else []


def instance_backends() -> list[str]:
    """Return the names of the backends that reach MIG instances."""
    return [
        name
        for name, backend in backends().items()
        if "NVIDIA" in backend.vendors and CUDA in visibility_variables(name)
    ]


def with_instances(
    listed: Sequence[DetectedDevice], by_entry: Mapping[str, Sequence[DetectedDevice]]
) -> list[DetectedDevice]:
    """Return the listed devices with the MIG instances that the variable names, each chosen by its entry.

    `by_entry` is what the runtime lists if the variable has only this entry. An instance replaces the listed device
    that is the same, or that is the card of which it is a part, if that has no identity.
    """
    if not any(by_entry.values()):
        return list(listed)
    instances: list[DetectedDevice] = []
    for entry, found in by_entry.items():
        for device in found:
            uuid = uuid_text(entry) or uuid_text(device.identity.get("uuid"), instance=True)
            identity = {**device.identity, **({"uuid": uuid} if uuid else {})}
            if any(_same(identity, other.identity) for other in instances):
                continue
            hardware = hardware_id(identity) or device.hardware_id
            instances.append(replace(device, identity=identity, hardware_id=hardware, selectors=[entry]))
    kept = [device for device in listed if not any(_stands_for(device, instance) for instance in instances)]
    return [replace(device, position=place) for place, device in enumerate([*kept, *instances])]


def find_hidden(
    backend: str,
    listed: Sequence[DetectedDevice],
    visible: Enumeration | None,
    environment: Mapping[str, str] = os.environ,
) -> dict[int, Hiding]:
    """Return why devices are hidden, by position. `visible` is what the runtime lists under the user's variables."""
    names = [name for name in visibility_variables(backend) if name in environment]
    if not names or visible is None:
        return {}
    settings = ", ".join(f"{name}={environment[name]}" for name in names)
    start = f"The server was started with {settings}"
    if visible.failed:
        trouble = str((visible.refusal or {}).get("detail") or visible.outcome.trouble or "no answer").rstrip(".")
        unknown = Hiding(f"{start}. Which cards that hides is unknown, because listing under it failed: {trouble}.")
        return {device.position: unknown for device in listed}
    chosen = {entry for entry in instance_entries(environment) if CUDA in names}
    all_, shown = (Counter(map(_key, devices)) for devices in (listed, visible.devices))
    hidden: dict[int, Hiding] = {}
    for device in listed:
        key = _key(device)
        if shown[key] >= all_[key] or chosen.intersection(device.selectors):
            continue
        if shown[key]:
            hidden[device.position] = Hiding(
                f"{start}, which hides {all_[key] - shown[key]} of {all_[key]} devices named {device.name}, and the "
                "library does not report which, so none of them is used.",
                "Restart the server without that variable.",
            )
        else:
            hidden[device.position] = Hiding(f"{start}, which hides it{_explanation(names, listed, environment)}.")
    return hidden


def as_hidden(device: Device, hiding: Hiding) -> Device:
    """Return a listed device as hidden."""
    return replace(
        device, state="unavailable", reason=hiding.reason, remedy=hiding.remedy, layer="permission", proof=None
    )


def _key(device: DetectedDevice) -> tuple[object, ...]:
    """Return what distinguishes a device in both lists: its identity, otherwise its name and memory."""
    identity = device.identity
    keys = (identity.get("pci"), _without_prefix(identity.get("uuid")), identity.get("luid"))
    if any(keys):
        return keys
    return ("fault",) if device.fault else (device.name, device.memory_bytes)


def _explanation(names: Sequence[str], listed: Sequence[DetectedDevice], environment: Mapping[str, str]) -> str:
    """Return why CUDA's variable shows less than it names, after a colon; empty if there is nothing to explain.

    By the CUDA programming guide an invalid entry hides the cards of all entries from it on. Observed with driver 580
    on an H200: a repeated entry hides all cards (error 101), as does a UUID without its prefix, or with the prefix in
    lower case.
    """
    value = environment.get(CUDA, "") if CUDA in names else ""
    entries = [entry.strip() for entry in value.split(",")]
    if value.strip() in _HIDES_ALL:
        return ""
    if repeated := next((entry for entry, times in Counter(entries).items() if times > 1), None):
        return f": the entry {repeated} is repeated, so CUDA shows no card"
    if invalid := next((entry for entry in entries if not _names_a_card(entry, listed)), None):
        return f": the entry {invalid!r} does not match exactly one card, and CUDA ignores all entries from it on"
    return ""


def _names_a_card(entry: str, listed: Sequence[DetectedDevice]) -> bool:
    if entry.isdecimal():
        return int(entry) < len(listed)
    uuids = [device.identity.get("uuid", "").lower() for device in listed]
    prefix, digits = entry[:4], entry[4:].lower()
    matching = [uuid for uuid in uuids if uuid and uuid[4:].startswith(digits)]
    has_prefix = prefix in ("GPU-", "MIG-")
    return not any(uuids) or (has_prefix and len(matching) == 1) or bool(_OLD_INSTANCE.fullmatch(entry))


def _stands_for(device: DetectedDevice, instance: DetectedDevice) -> bool:
    """Return whether a listed device is this instance, or the card under which the library lists its instances."""
    if "uuid" not in device.identity:
        return device.identity.get("pci") == instance.identity.get("pci") is not None
    parent = (_without_prefix(instance.identity.get("uuid")) or "").partition("/")[0].removeprefix("GPU-")
    return _same(device.identity, instance.identity) or _without_prefix(device.identity["uuid"]) == parent


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    uuids = _without_prefix(one.get("uuid")), _without_prefix(other.get("uuid"))
    return uuids[0] == uuids[1] is not None


def _without_prefix(uuid: str | None) -> str | None:
    return uuid[4:] if uuid else None
