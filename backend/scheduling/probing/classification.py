"""Classification: from a probe child's frames, or its exit, to a device's state, stage, reason, remedy and layer."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import replace
from functools import cache

from backend.child.wire_protocol import Frame
from backend.common.commands import command
from backend.common.device_api import DetectedDevice
from backend.common.known_errors import remedy as remedies
from backend.common.known_errors.known_error import Layer
from backend.common.known_errors.place import BASE, Place, place_of
from backend.common.known_errors.table import find
from backend.common.redaction import Redactor, redactor
from backend.common.types import Device, DeviceState, Proof, Stage
from backend.devices import Backend
from backend.engines import engines
from backend.scheduling.probing.failure_layers import Cause, cause_of
from backend.scheduling.probing.prober import Outcome

_WRONG = (
    "Do not trust this device: update its driver and the runtime, then refresh. If it repeats, the card and this build "
    "are incompatible, or the card is damaged. Use the CPU meanwhile."
)
_WRONG_TYPE = (
    "Update the device's driver and the runtime, then refresh. If it repeats, this card and this build are "
    "incompatible in that data type; use another engine, or the CPU."
)
_WRONG_LIBRARY = (
    "The engine's library does not fit this processor: use another engine, update the runtime, then refresh."
)
_UNSUPPORTED_TYPE = (
    "Use another engine or another device. A newer build of the runtime may support it: update the runtime and the "
    "device's driver, then refresh."
)
_GONE = (
    f"Check that the card is plugged in and its driver runs (see `{command('doctor')}`), or use another device; then "
    "refresh."
)
_BRINGS = (
    f"`{command('runtimes update {runtime}')}` adds it. In your own environment, install {{library}} with its pip."
)
_AGAIN = (
    f"Refresh the device when the machine is less busy (`{command('devices')}` with the server stopped, or the page's "
    "button)."
)
_SICK = (
    "Restart the machine, and if it repeats, take the card out or have it replaced: the other cards work. "
    f"`{command('doctor')}` shows what the driver reports of it."
)
_VAGUE = ("cuda-unknown", "crash", "hang")  # their remedies are for a machine, but here the other cards work
_INVISIBLE = re.compile(
    r"invalid device ordinal|no CUDA GPUs are available|no CUDA-capable device|cudaErrorNoDevice", re.IGNORECASE
)
_INVALID = (
    "Restart the server, so that it and its child processes run the same version. If it repeats, reinstall the "
    "runtime's packages: one of them writes into the child's output. Then refresh."
)


def unproved(id_: str, backend: Backend, runtime: str, detected: DetectedDevice | None = None) -> Device:
    """Return the device in the state `probing`; `detected` is how a runtime lists it. Optional."""
    device = Device(
        id=id_,
        name=backend.label,
        backend=backend.name,
        kind=backend.kind,
        state="probing",
        runtimes=[runtime],
        reason="The device is being checked.",
        remedy="Wait a moment; the result follows automatically.",
        aliases=list(dict.fromkeys([*backend.aliases, *(alias for alias, _, _ in backend.engine_aliases)])),
    )
    if detected is None:
        return device
    return replace(
        device,
        name=_secrets().text(detected.name),
        kind=detected.kind,
        stage="visible",
        hardware_id=detected.hardware_id,
        memory_bytes=detected.memory_bytes,
        memory_free_bytes=detected.memory_free_bytes,
    )


def proved(device: Device, runtime: str, outcome: Outcome, is_complete: bool = True) -> Device:
    """Return the device after its proof, successful or not. `is_complete`: all engines are checked. Optional."""
    frame = outcome.first("proved")
    if frame is None or outcome.is_invalid:
        return refused(device, outcome)
    proof = frame["proof"] if isinstance(frame["proof"], Proof) else Proof(**frame["proof"])
    free_bytes = frame.get("memory_free_bytes")
    frame_of_engines = outcome.last("engines") or {"engines": {}}
    by_engine: dict[str, dict[str, str]] = frame_of_engines["engines"]
    checked = {name: by_engine[name] for name in engines() if name in by_engine}  # versions by engine
    device = replace(
        device,
        stage="measured" if proof.gflops is not None else "runs",
        proof=proof,
        versions={
            **proof.versions,
            **{name: version for versions in checked.values() for name, version in versions.items()},
        },
        memory_free_bytes=device.memory_free_bytes if free_bytes is None else free_bytes,
    )
    lacks = _lacks(device, runtime, checked, proof, outcome, is_complete)
    if not checked and (refusal := next((each for each in outcome.frames if each.get("data_type")), None)):
        reason = _secrets().text(f"No engine can compute on this device: {refusal['detail']}.")
        remedy = _remedy_of_type(proof, refusal["data_type"])
        return replace(device, state="broken", reason=reason, remedy=remedy, layer="computation", lacks=lacks)
    missing = outcome.first("no_engine")
    if runtime == BASE and not checked and (missing or outcome.trouble):
        detail = missing["detail"] if missing else str(outcome.trouble)
        place = _place(device, outcome, outcome.step()["what"])
        cause = cause_of(detail, "library load", remedies.reinstalled(place), place)
        reason = _secrets().text(f"The device computes, but no engine can be used on it: {detail}.")
        return replace(device, state="broken", reason=reason, remedy=cause.remedy, layer=cause.layer)
    tasks = sorted({task for name in checked for task in engines()[name].tasks})
    return replace(
        device,
        state="ready",
        reason=None,
        remedy=None,
        engines=list(checked),
        tasks=tasks,
        served_by={runtime: list(checked)},
        lacks=lacks,
    )


def _lacks(
    device: Device, runtime: str, checked: Collection[str], proof: Proof, outcome: Outcome, is_complete: bool
) -> dict[str, str]:
    """Return why engines that this runtime should have are missing.

    They do not load, need a data type that is unusable on the device, or were not checked (yet).
    """
    refusals = {frame["engine"]: frame for frame in outcome.frames if frame["op"] == "no_engine"}
    lacks = {}
    for engine in engines().values():
        refusal = refusals.get(engine.name, {})
        if dtype := refusal.get("data_type"):
            why = f"{refusal['detail']}: {engine.name} computes in {dtype}. {_remedy_of_type(proof, dtype)}"
            lacks[engine.name] = _secrets().text(why)
            continue
        if engine.name in checked or device.backend not in engine.backends or runtime not in engine.runtimes:
            continue
        if detail := refusal.get("detail"):
            place = _place(device, outcome, f"loading {engine.library}")
            brings = (
                remedies.reinstalled(place)
                if runtime == BASE
                else _BRINGS.format(runtime=runtime, library=engine.library)
            )
            lacks[engine.name] = _secrets().text(f"The runtime {runtime} lacks it ({detail.rstrip('.')}). {brings}")
        elif not is_complete:
            lacks[engine.name] = f"It is being checked in the runtime {runtime}. Wait a moment."
        elif outcome.trouble:
            reason = f"It was not checked in the runtime {runtime}: {outcome.trouble.rstrip('.')}."
            lacks[engine.name] = _secrets().text(f"{reason} {_AGAIN}")
    return lacks


def _remedy_of_type(proof: Proof, dtype: str) -> str:
    if dtype not in proof.unusable:  # the engine's own library found it
        return _WRONG_LIBRARY
    is_wrong = any("failed" in row for row in proof.checks if row["dtype"] == dtype)
    return _WRONG_TYPE if is_wrong else _UNSUPPORTED_TYPE


def sees_nothing(outcome: Outcome, backend: str) -> bool:
    """Return whether the proof's process saw no such device, as if the driver refused the variable's value."""
    frames = [frame for frame in outcome.frames if backend in frame.get("backends", [])]
    return any(
        frame["op"] == "absent" or (frame["op"] == "failed" and _INVISIBLE.search(frame.get("detail", "")))
        for frame in frames
    )


def undescribed(device: Device, fault: str, outcome: Outcome) -> Device:
    """Return a device that its library counts but cannot describe. `outcome` is that of the child that listed it."""
    imports = (  # the child may have gone on to the libraries of other backends
        each["what"]
        for each in reversed(outcome.frames)
        if each["op"] == "step" and each["what"].startswith("importing ") and device.backend in each["backends"]
    )
    found = find(fault)
    is_vague = found is not None and found.error.name in _VAGUE
    cause = cause_of("" if is_vague else fault, "driver", _SICK, _place(device, outcome, next(imports, "")))
    reason = f"The check failed while describing {device.id}: {fault}"
    return replace(_refusal(device, "broken", reason, cause), stage="visible")


def refused(device: Device, outcome: Outcome, frame: Frame | None = None) -> Device:
    """Return the device that was not proved or not listed, with the reason from a frame or from the child's exit."""
    frames = [frame] if frame else outcome.frames
    for each in frames:
        if outcome.is_invalid and each is not frame and each["op"] != "wrong":  # frames of such a child are not trusted
            continue
        if device.backend in each.get("backends", []) and (judged := _by_frame(device, each, outcome)):
            return judged
    what = outcome.step()["what"]
    trouble = (outcome.trouble or "it ended without an answer").rstrip(".")
    reason = f"The check failed while {what}: {trouble}."
    layer: Layer
    layer, remedy = ("runtime package", _INVALID) if outcome.is_invalid else (_layer_of(what), None)
    cause = cause_of(f"while {what}: {trouble}", layer, remedy, _place(device, outcome, what))
    return _refusal(device, "broken", reason, cause)


def _by_frame(device: Device, frame: Frame, outcome: Outcome) -> Device | None:
    """Return the device as a frame of the child refuses it, None for any other frame."""
    detail: str = frame.get("detail", "").rstrip(".")
    what = _before(frame, outcome)
    place = _place(device, outcome, what)
    if frame["op"] == "wrong":
        return _refusal(device, "broken", f"Wrong result: {detail}.", Cause("computation", _WRONG))
    if frame["op"] == "absent":
        stage: Stage = "installed" if device.stage == "none" else device.stage
        reason = f"{detail}." if detail[:1].isupper() else f"No such device: {detail}."
        return _refusal(replace(device, stage=stage), "unavailable", reason, cause_of(detail, "driver", _GONE, place))
    if frame["op"] == "missing" and what.startswith("importing"):
        reason = f"The runtime's packages do not load ({what}): {detail}."
        cause = cause_of(detail, "library load", remedies.reinstalled(place), place)
        return _refusal(replace(device, stage="none"), "unavailable", reason, cause)
    if frame["op"] in ("missing", "failed"):
        cause = cause_of(detail, _layer_of(what), place=place)
        state: DeviceState = "unavailable" if cause.absent else "broken"
        return _refusal(device, state, f"The check failed while {what}: {detail}.", cause)
    return None


def _refusal(device: Device, state: DeviceState, reason: str, cause: Cause) -> Device:
    return replace(
        device,
        state=state,
        reason=_secrets().text(reason).rstrip(".") + ".",
        remedy=cause.remedy,
        layer=cause.layer,
        proof=None,
    )


@cache
def _secrets() -> Redactor:
    """Return the redactor for texts of libraries, which may print keys and passwords of the environment."""
    return redactor(os.environ)


def _before(frame: Frame, outcome: Outcome) -> str:
    """Return what the child was about to do when it sent the frame."""
    index = next((index for index, each in enumerate(outcome.frames) if each is frame), len(outcome.frames))
    steps = [each["what"] for each in outcome.frames[:index] if each["op"] == "step"]
    return steps[-1] if steps else "starting"


def _layer_of(what: str) -> Layer:
    if what.startswith(("importing", "loading")):
        return "library load"
    return "runtime package" if what == "starting" else "driver" if what.startswith("listing") else "computation"


def _place(device: Device, outcome: Outcome, what: str) -> Place:
    """Return where an error happened: the interpreter, and the library that the child used in a step."""
    steps = [what, *(each["what"] for each in reversed(outcome.frames) if each["op"] == "step")]
    library = next((step.split()[-1] for step in steps if step.startswith(("importing ", "loading "))), "")
    runtime = device.runtimes[0] if device.runtimes else ""
    return replace(place_of(runtime, outcome.python, library), is_processor=device.kind == "cpu")
