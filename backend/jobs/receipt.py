"""The receipt of a job, built attempt by attempt. Only this module sets `used`, from the worker's evidence.

`used` is the device if at least half of the model is there, else where most of the rest is. If the user or the free
memory split the model on purpose, one layer on the device is enough. It is set once the worker
reported a step of the job: before that, nothing ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from backend.child.wire_protocol import Frame
from backend.common.timestamps import utc_now
from backend.common.types import (
    Attempt,
    Device,
    Memory,
    MemoryFit,
    Placement,
    Rate,
    Receipt,
    Times,
)
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.worker import Worker

PLACEMENT_FLOOR = 0.5  # with a smaller share on the device the job does not count as run there
_ROUNDING = 1e-6  # of sums of shares
_STEPS = ("token", "progress", "artifact")  # frames that a worker sends when it has computed

_EMPTY = Receipt(asked="", resolved=None, resolved_reason="")


@dataclass
class ReceiptBuilder:
    """Collects the facts of a receipt. Durations come from the monotonic clock."""

    asked: str
    resolution: Resolution
    accepted_at: float
    attempts: list[Attempt] = field(default_factory=list)
    reason: str | None = None
    queued_s: float = 0.0
    load_s: float = 0.0
    _facts: Receipt = field(default_factory=lambda: _EMPTY)  # of the last attempt
    _device: str = ""  # of the last attempt
    _where: str | None = None  # where the model is by the evidence, even if nothing ran
    _has_stepped: bool = False
    _fit: MemoryFit | None = None  # of the loaded model

    def begin_attempt(self, device: Device, runtime: str, engine: str) -> None:
        """Record the start of an attempt on a device."""
        self.attempts.append(Attempt(device.id, runtime, engine, utc_now()))
        self._facts = replace(_EMPTY, engine=engine, runtime=runtime, hardware_id=device.hardware_id)
        self._device, self._where, self._has_stepped, self._fit = device.id, None, False, None

    @property
    def engine(self) -> str | None:
        """The engine of the last attempt, None before the first."""
        return self.attempts[-1].engine if self.attempts else None

    def record_refusal(self, device: str, error: str) -> None:
        """Record a device that was refused before any worker was started."""
        now = utc_now()
        self.attempts.append(Attempt(device, None, None, now, now, error))

    def end_attempt(self, error: str | None = None) -> None:
        """Record the end of the last attempt, with the error code if it failed."""
        self.attempts[-1] = replace(self.attempts[-1], ended_at=utc_now(), error=error)

    def record_placement(self, worker: Worker, device: Device) -> float | None:
        """Record the worker's evidence. Return the model's share on the device, None if it is unknown."""
        assert worker.loaded
        self._fit = worker.loaded.fit
        placement, self._where = judge_placement(worker.loaded.placement, device.id, self._fit)
        self._facts = replace(
            self._facts,
            placement=placement,
            versions=worker.loaded.versions,
            model_file=worker.loaded.model_file,
            model_stamp=worker.loaded.model_stamp,
            threads=worker.loaded.threads,
            slots=worker.loaded.slots,
            context_tokens=worker.loaded.context_tokens,
            fit=self._fit,
            worker_pid=worker.pid,
        )
        return placement.on_device

    def record_step(self, op: str = _STEPS[0]) -> bool:
        """Record that the worker has computed, by the `op` of its frame. Return whether it is the first step."""
        if self._has_stepped or op not in _STEPS:
            return False
        self._has_stepped = True
        self._facts = replace(self._facts, used=self._where)
        return True

    def record_result(self, done: Frame) -> None:
        """Record what the worker measured during the run, from its `done` frame."""
        run_s, first_s, audio_s = done["run_s"], done["first_token_s"], done.get("audio_s")
        tokens = done["counts"].get("tokens", 0)
        rate = None
        if audio_s and run_s > 1e-9:
            rate = Rate(audio_s / run_s, "× real time")
        elif first_s is not None and tokens > 1 and run_s - first_s > 1e-9:
            rate = Rate((tokens - 1) / (run_s - first_s), "tokens/s")
        if not done["cancelled"]:
            self.record_step()
        placement = self._placement_at_end(done["placement"])
        if placement and done.get("evidence"):
            placement = replace(placement, evidence=f"{placement.evidence} {done['evidence']}")
        self._facts = replace(
            self._facts,
            placement=placement,
            used=self._where if self._has_stepped else None,
            model_stamp=done["model_stamp"] or self._facts.model_stamp,
            counts=done["counts"],
            memory=Memory(**done["memory"]),
            chat_template=done["chat_template"],
            batched=done["batched"],
            rate=rate,
            audio_s=audio_s,
            phases=done.get("phases", {}),
            chosen=done.get("chosen", {}),
            times=Times(first_token_s=first_s, run_s=run_s),
        )

    def describe_departure(self) -> str | None:
        """Return a sentence if the model was not on the device at the end of the job; None if it was, or unknown."""
        placement = self._facts.placement
        if placement is None or placement.on_device is None or not is_too_low(placement.on_device, self._fit):
            return None
        return f"{placement.on_device:.0%} of it was there at the end. {placement.evidence}"

    def _placement_at_end(self, found: Placement | None) -> Placement | None:
        """Return the placement at the end of the job. `found` is what the worker looked up again. Optional.

        A model that moved during the job computed in an unknown place.
        """
        before = self._facts.placement
        if found is None or before is None:
            return before
        after, where = judge_placement(replace(found, on_device=None), self._device, self._fit)
        self._where = where if self._where in (where, None) else None
        if after.on_device is None and before.on_device is None:
            return before
        if (after.on_device, after.parts) == (before.on_device, before.parts):
            return replace(before, evidence=f"{before.evidence} The same at the end of the job.")
        return replace(after, evidence=f"At the end of the job: {after.evidence} After loading: {before.evidence}")

    def build(self, now: float, seed: int | None) -> Receipt | None:
        """Return the receipt so far, None if no worker was given the job."""
        if not any(attempt.runtime for attempt in self.attempts):
            return None
        facts = self._facts
        total_s = now - self.accepted_at
        return replace(
            facts,
            asked=self.asked,
            resolved=self.resolution.resolved,
            resolved_reason=self.resolution.reason,
            reason=self.reason,
            attempts=list(self.attempts),
            seed=seed,
            times=replace(facts.times, queued_s=self.queued_s, load_s=self.load_s, total_s=total_s),
            fell_back=None if facts.used is None else facts.used != self.resolution.resolved,
        )


def counts_as_device(share: float, fit: MemoryFit | None = None) -> bool:
    """Return whether a share of a model on a device is enough for the job to count as run there.

    Where a part is in system memory on purpose, any layer on the device is enough.
    """
    return share > 0 if fit is not None and fit.is_partial else share >= PLACEMENT_FLOOR - _ROUNDING


def is_too_low(share: float | None, fit: MemoryFit | None) -> bool:
    """Return whether too little of a model is on a device. No share is too low where the user or the memory set it."""
    return share is not None and (fit is None or not fit.is_partial) and not counts_as_device(share)


def judge_placement(reported: Placement, device: str, fit: MemoryFit | None = None) -> tuple[Placement, str | None]:
    """Return the placement with the share on a device, and where the job runs by this evidence.

    Both are None if a share is missing, or if the shares cannot be true. Of several other places with the same share,
    it runs at the first by name.
    """
    shares: dict[str, float] = {}
    for part in reported.parts:
        if part.share_of_nodes is None:
            return replace(reported, on_device=None), None
        shares[part.where] = shares.get(part.where, 0.0) + part.share_of_nodes
    if not shares:
        return replace(reported, on_device=None), None
    is_possible = all(math.isfinite(share) and share >= 0 for share in shares.values())
    if not is_possible or sum(shares.values()) > 1 + _ROUNDING:
        evidence = f"{reported.evidence} The shares contradict each other, so the placement is unknown."
        return Placement(None, reported.parts, evidence), None
    on_device = shares.pop(device, 0.0)
    if counts_as_device(on_device, fit):
        where: str | None = device
    else:
        where = min(shares, key=lambda place: (-shares[place], place), default=None)
    return replace(reported, on_device=on_device), where
