"""From what a probe child said, or how it ended, to what is known of a device: state, stage, reason, remedy, layer."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from functools import cache

from backend.child.wire_protocol import Header
from backend.common.device_api import DetectedDevice
from backend.common.redaction import Redactor, redactor
from backend.common.types import Device, DeviceState, Proof, Stage
from backend.devices import Backend
from backend.engines import engines
from backend.scheduling.probing.failure_layers import Cause, Layer, cause_of
from backend.scheduling.probing.prober import Outcome

BASE = "base"  # the runtime that comes with the server, whose engines are promised
REINSTALL = "Install the runtime's packages again (for `base`: delete .venv and start the launcher), then refresh."
_WRONG = (
    "Do not trust this device: update its driver and the runtime, then refresh; if it repeats, the card and this build "
    "do not fit each other, or the card is damaged. The CPU serves."
)
_GONE = "Check that the card is there and its driver runs (`doctor` tells), or use another device; then refresh."
_BRINGS = "`runtimes update {runtime}` brings it; into an environment of your own, install {library} with its pip."
_AGAIN = (
    "Check the device again when the machine is less busy (`devices` with the server stopped, or the page's button)."
)
_CRASHED = (
    "Update the device's driver and the runtime, then refresh; if it repeats, this card and this build do not fit each "
    "other, and the CPU serves."
)


def unproved(id_: str, backend: Backend, runtime: str, found: DetectedDevice | None = None) -> Device:
    """The device while nothing is known of it but that it was listed, if it was."""
    device = Device(
        id=id_,
        name=backend.label,
        backend=backend.name,
        kind=backend.kind,
        state="probing",
        runtimes=[runtime],
        reason="The device is being checked.",
        remedy="Wait a moment; the result follows by itself.",
        aliases=list(dict.fromkeys([*backend.aliases, *(alias for alias, _, _ in backend.engine_aliases)])),
    )
    if found is None:
        return device
    return replace(
        device,
        name=_told().text(found.name),
        kind=found.kind,
        stage="visible",
        hardware_id=found.hardware_id,
        memory_bytes=found.memory_bytes,
        memory_free_bytes=found.memory_free_bytes,
    )


def proved(device: Device, runtime: str, outcome: Outcome) -> Device:
    """The device after its proof, whatever came of it."""
    frame = outcome.first("proved")
    if frame is None:
        return refused(device, outcome)
    proof = Proof(**frame["proof"])
    told = outcome.last("engines") or {"engines": {}}
    checked: dict[str, dict[str, str]] = told["engines"]
    device = replace(
        device,
        stage="measured" if proof.gflops is not None else "runs",
        proof=proof,
        versions={**proof.versions, **{k: v for found in checked.values() for k, v in found.items()}},
        memory_free_bytes=frame.get("memory_free_bytes") or device.memory_free_bytes,
    )
    missing = outcome.first("no_engine")
    if runtime == BASE and not checked and (missing or outcome.trouble):
        detail = missing["detail"] if missing else str(outcome.trouble)
        cause = cause_of(detail, "library load", REINSTALL)
        reason = _told().text(f"The device computes, but no engine can be used on it: {detail}.")
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
        lacks=_lacks(device.backend, runtime, checked, outcome),
    )


def _lacks(backend: str, runtime: str, checked: Collection[str], outcome: Outcome) -> dict[str, str]:
    """Why engines that this runtime should bring are not there: they do not load, or the child did not come to them."""
    details = {frame["engine"]: frame["detail"] for frame in outcome.frames if frame["op"] == "no_engine"}
    found = {}
    for engine in engines().values():
        if engine.name in checked or backend not in engine.backends or runtime not in engine.runtimes:
            continue
        if detail := details.get(engine.name):
            brings = REINSTALL if runtime == BASE else _BRINGS.format(runtime=runtime, library=engine.library)
            found[engine.name] = _told().text(f"The runtime {runtime} lacks it ({detail.rstrip('.')}). {brings}")
        elif outcome.trouble:
            reason = f"It was not checked in the runtime {runtime}: {outcome.trouble.rstrip('.')}."
            found[engine.name] = _told().text(f"{reason} {_AGAIN}")
    return found


def refused(device: Device, outcome: Outcome, frame: Header | None = None) -> Device:
    """The device that was not proved or not even listed: by the frame that says why, or by how the child ended."""
    frames = [frame] if frame else outcome.frames
    for one in frames:
        if device.backend in one.get("backends", []) and (judged := _by_frame(device, one, outcome)):
            return judged
    what = outcome.step()["what"]
    trouble = (outcome.trouble or "it ended without an answer").rstrip(".")
    reason = f"The check failed while {what}: {trouble}."
    return _refusal(device, "broken", reason, cause_of(trouble, _layer_of(what), _CRASHED))


def _by_frame(device: Device, frame: Header, outcome: Outcome) -> Device | None:
    """What one frame says of the device, or None if it is none that refuses."""
    detail: str = frame.get("detail", "").rstrip(".")
    what = _before(frame, outcome)
    if frame["op"] == "wrong":
        return _refusal(device, "broken", f"Wrong result: {detail}.", Cause("computation", _WRONG))
    if frame["op"] == "absent":
        stage: Stage = "installed" if device.stage == "none" else device.stage
        reason = f"{detail}." if detail[:1].isupper() else f"No such device: {detail}."
        return _refusal(replace(device, stage=stage), "unavailable", reason, cause_of(detail, "driver", _GONE))
    if frame["op"] == "missing" and what.startswith("importing"):
        reason = f"The runtime's packages do not load ({what}): {detail}."
        cause = cause_of(detail, "library load", REINSTALL)
        return _refusal(replace(device, stage="none"), "unavailable", reason, cause)
    if frame["op"] in ("missing", "failed"):
        cause = cause_of(detail, _layer_of(what))
        state: DeviceState = "unavailable" if cause.absent else "broken"
        return _refusal(device, state, f"The check failed while {what}: {detail}.", cause)
    return None


def _refusal(device: Device, state: DeviceState, reason: str, cause: Cause) -> Device:
    return replace(
        device,
        state=state,
        reason=_told().text(reason).rstrip(".") + ".",
        remedy=cause.remedy,
        layer=cause.layer,
        proof=None,
    )


@cache
def _told() -> Redactor:
    """Libraries print what they find, keys and passwords of the environment among it."""
    return redactor(os.environ)


def _before(frame: Header, outcome: Outcome) -> str:
    """What the child was about to do when it sent the frame."""
    place = next((number for number, one in enumerate(outcome.frames) if one is frame), len(outcome.frames))
    steps = [one["what"] for one in outcome.frames[:place] if one["op"] == "step"]
    return steps[-1] if steps else "starting"


def _layer_of(what: str) -> Layer:
    if what.startswith(("importing", "loading")):
        return "library load"
    return "runtime package" if what == "starting" else "driver" if what.startswith("listing") else "computation"
