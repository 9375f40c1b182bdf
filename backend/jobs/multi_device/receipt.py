"""The receipt of a job that several devices worked on: one whole, and what each of them made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from backend.common.types import Attempt, Memory, Placement, PlacementPart, Rate, Receipt, Times
from backend.jobs.multi_device.division import ShareSpec

Value = TypeVar("Value", int, float)


def combined_receipt(
    asked: str, reason: str, run_s: float | None, refused: Sequence[Attempt], done: Sequence[tuple[ShareSpec, Receipt]]
) -> Receipt:
    """Adds up the receipts of the shares that were given to a worker, at least one.

    `run_s` is the time from the first worker's start to the last one's end. `refused` are devices that got no share.
    """
    first = done[0][1]
    told = [receipt for _, receipt in done]
    audio_s = _sum(one.audio_s for one in told)
    used = [one.used for one in told]
    fell_back = [one.fell_back for one in told]
    versions: dict[str, str] = {}
    for one in told:
        versions |= one.versions
    attempts = [attempt for one in told for attempt in one.attempts]
    return replace(
        first,
        asked=asked,
        resolved=_listed(one.resolved for one in told),
        resolved_reason=reason,
        used=None if None in used else _listed(used),
        fell_back=None if None in fell_back else any(fell_back),
        reason=_said(one.reason for one in told),
        engine=_listed(one.engine for one in told),
        runtime=_listed(one.runtime for one in told),
        hardware_id=_listed(one.hardware_id for one in told),
        placement=_placed(done),
        attempts=sorted([*refused, *attempts], key=lambda attempt: attempt.started_at),
        memory=_memory(told),
        versions=versions,
        times=_times(told, run_s),
        counts=_added(one.counts for one in told),
        batched=any(one.batched for one in told),
        rate=Rate(audio_s / run_s, "× real time") if audio_s and run_s else None,
        audio_s=audio_s,
        phases={name: max(one.phases.get(name, 0.0) for one in told) for one in told for name in one.phases},
        chosen=_chosen(told),
        parts=[replace(one, variations=share.numbers) for share, one in done],
    )


def _placed(done: Sequence[tuple[ShareSpec, Receipt]]) -> Placement | None:
    """The least share that lies on its device, the parts by how many variations were made there, all evidence."""
    placed = [(share.count, one.placement) for share, one in done if one.placement]
    if not placed:
        return None
    shares: dict[str, float | None] = {}
    count = sum(number for number, _ in placed)
    for number, one in placed:
        for part in one.parts:
            known = shares.get(part.where, 0.0)
            here = part.share_of_nodes
            shares[part.where] = None if known is None or here is None else known + here * number / count
    on_device = [one.on_device for _, one in placed]
    least = None if None in on_device else min(each for each in on_device if each is not None)
    parts = [PlacementPart(where, share) for where, share in shares.items()]
    return Placement(least, parts, _said(one.evidence for _, one in placed) or "")


def _memory(told: Sequence[Receipt]) -> Memory:
    workers = {one.worker_pid: one.memory for one in told}.values()
    return Memory(*(_sum(getattr(one, field.name) for one in workers) for field in fields(Memory)))


def _times(told: Sequence[Receipt], run_s: float | None) -> Times:
    def found(name: str) -> list[float]:
        return [value for one in told if (value := getattr(one.times, name)) is not None]

    longest = {name: max(found(name), default=None) for name in ("queued_s", "load_s", "total_s")}
    return Times(first_token_s=min(found("first_token_s"), default=None), run_s=run_s, **longest)


def _chosen(told: Sequence[Receipt]) -> dict[str, Any]:
    """What the first share tells, with the seeds of all."""
    seeds = [seed for one in told for seed in one.chosen.get("seeds", ())]
    return {**told[0].chosen, **({"seeds": seeds} if seeds else {})}


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            total[name] = total.get(name, 0) + number
    return total


def _sum(values: Iterable[Value | None]) -> Value | None:
    """The sum, or None where nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _listed(names: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def _said(sentences: Iterable[str | None]) -> str | None:
    return " ".join(dict.fromkeys(one for one in sentences if one)) or None
