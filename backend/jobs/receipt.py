"""The receipt of a job, built attempt by attempt. Only this module sets `used`, from the worker's evidence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from backend.child.wire_protocol import Frame
from backend.common.timestamps import utc_now
from backend.common.types import Attempt, Device, Memory, Placement, Rate, Receipt, Times
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.worker import Worker

PLACEMENT_FLOOR = 0.5  # with a smaller share on the device the job does not count as run there


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

    def begin_attempt(self, device: Device, runtime: str, engine: str) -> None:
        """Record the start of an attempt on a device."""
        self.attempts.append(Attempt(device.id, runtime, engine, utc_now()))
        self._facts = replace(_EMPTY, engine=engine, runtime=runtime, hardware_id=device.hardware_id)

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
        reported = worker.loaded.placement
        shares = {part.where: part.share_of_nodes for part in reported.parts}
        has_evidence = bool(shares) and None not in shares.values()
        on_device = (shares.get(device.id) or 0.0) if has_evidence else None
        used = max(shares, key=lambda where: shares[where] or 0.0) if has_evidence else None
        self._facts = replace(
            self._facts,
            placement=Placement(on_device, reported.parts, reported.evidence),
            used=used,
            versions=worker.loaded.versions,
            model_file=worker.loaded.model_file,
            threads=worker.loaded.threads,
            worker_pid=worker.pid,
        )
        return on_device

    def record_result(self, done: Frame) -> None:
        """Record what the worker measured during the run, from its `done` frame."""
        run_s, first_s, audio_s = done["run_s"], done["first_token_s"], done.get("audio_s")
        tokens = done["counts"].get("tokens", 0)
        rate = None
        if audio_s:
            rate = Rate(audio_s / run_s, "× real time")
        elif first_s is not None and tokens > 1 and run_s > first_s:
            rate = Rate((tokens - 1) / (run_s - first_s), "tokens/s")
        placement = self._facts.placement
        if placement and done.get("evidence"):
            placement = replace(placement, evidence=f"{placement.evidence} {done['evidence']}")
        self._facts = replace(
            self._facts,
            placement=placement,
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

    def build(self, now: float, seed: int | None, model_file: str | None) -> Receipt | None:
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
            model_file=facts.model_file or model_file,
            times=replace(facts.times, queued_s=self.queued_s, load_s=self.load_s, total_s=total_s),
            fell_back=None if facts.used is None else facts.used != self.resolution.resolved,
        )
