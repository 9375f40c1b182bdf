"""The receipt of a job on several devices: the sums, and the receipt of each share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from backend.common.types import Attempt, JsonObject, Memory, Placement, PlacementPart, Rate, Receipt, Times
from backend.jobs.multi_device.division import ShareSpec

Value = TypeVar("Value", int, float)


def combined_receipt(
    asked: str, reason: str, run_s: float | None, refused: Sequence[Attempt], done: Sequence[tuple[ShareSpec, Receipt]]
) -> Receipt:
    """Return the sum of the receipts of the shares that a worker ran, at least one.

    `run_s` is the time from the first worker's start to the last one's end. `refused` are devices that got no share.
    """
    first = done[0][1]
    receipts = [receipt for _, receipt in done]
    audio_s = _sum_known(receipt.audio_s for receipt in receipts)
    used = [receipt.used for receipt in receipts]
    fell_back = [receipt.fell_back for receipt in receipts]
    versions: dict[str, str] = {}
    for receipt in receipts:
        versions |= receipt.versions
    attempts = [attempt for receipt in receipts for attempt in receipt.attempts]
    return replace(
        first,
        asked=asked,
        resolved=_join_names(receipt.resolved for receipt in receipts),
        resolved_reason=reason,
        used=None if None in used else _join_names(used),
        fell_back=None if None in fell_back else any(fell_back),
        reason=_join_sentences(receipt.reason for receipt in receipts),
        engine=_join_names(receipt.engine for receipt in receipts),
        runtime=_join_names(receipt.runtime for receipt in receipts),
        hardware_id=_join_names(receipt.hardware_id for receipt in receipts),
        placement=_combine_placement(done),
        attempts=sorted([*refused, *attempts], key=lambda attempt: attempt.started_at),
        memory=_combine_memory(receipts),
        versions=versions,
        times=_combine_times(receipts, run_s),
        counts=_add_counts(receipt.counts for receipt in receipts),
        batched=any(receipt.batched for receipt in receipts),
        rate=Rate(audio_s / run_s, "× real time") if audio_s and run_s else None,
        audio_s=audio_s,
        phases={
            name: max(receipt.phases.get(name, 0.0) for receipt in receipts)
            for receipt in receipts
            for name in receipt.phases
        },
        chosen=_combine_chosen(receipts),
        parts=[replace(receipt, variations=share.numbers) for share, receipt in done],
    )


def _combine_placement(done: Sequence[tuple[ShareSpec, Receipt]]) -> Placement | None:
    """Return the smallest on-device share, the parts weighted by the variations made there, and all evidence."""
    placed = [(share.count, receipt.placement) for share, receipt in done if receipt.placement]
    if not placed:
        return None
    shares: dict[str, float | None] = {}
    total = sum(variations for variations, _ in placed)
    for variations, placement in placed:
        for part in placement.parts:
            so_far = shares.get(part.where, 0.0)
            here = part.share_of_nodes
            shares[part.where] = None if so_far is None or here is None else so_far + here * variations / total
    on_device = [placement.on_device for _, placement in placed]
    least = None if None in on_device else min(each for each in on_device if each is not None)
    parts = [PlacementPart(where, share) for where, share in shares.items()]
    return Placement(least, parts, _join_sentences(placement.evidence for _, placement in placed) or "")


def _combine_memory(receipts: Sequence[Receipt]) -> Memory:
    memories = {receipt.worker_pid: receipt.memory for receipt in receipts}.values()
    return Memory(*(_sum_known(getattr(memory, field.name) for memory in memories) for field in fields(Memory)))


def _combine_times(receipts: Sequence[Receipt], run_s: float | None) -> Times:
    def known_values(name: str) -> list[float]:
        return [value for receipt in receipts if (value := getattr(receipt.times, name)) is not None]

    longest = {name: max(known_values(name), default=None) for name in ("queued_s", "load_s", "total_s")}
    return Times(first_token_s=min(known_values("first_token_s"), default=None), run_s=run_s, **longest)


def _combine_chosen(receipts: Sequence[Receipt]) -> JsonObject:
    """Return the choices of the first share, with the seeds of all shares."""
    seeds = [seed for receipt in receipts for seed in receipt.chosen.get("seeds", ())]
    return {**receipts[0].chosen, **({"seeds": seeds} if seeds else {})}


def _add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, number in each.items():
            total[name] = total.get(name, 0) + number
    return total


def _sum_known(values: Iterable[Value | None]) -> Value | None:
    """Return the sum of the known values, None if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _join_names(names: Iterable[str | None]) -> str | None:
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def _join_sentences(sentences: Iterable[str | None]) -> str | None:
    return " ".join(dict.fromkeys(sentence for sentence in sentences if sentence)) or None
