"""What a measurement says: rows as every benchmark has them, sentences, and what is kept for `auto`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from backend import __version__
from backend.common.timestamps import utc_now
from backend.common.types import Speed
from backend.manager.benchmarks.agreement import agreement, sound_error
from backend.manager.benchmarks.history import Measurement
from backend.manager.benchmarks.rows import Row, report, row
from backend.manager.benchmarks.runner import Measured, MeasuredTarget
from backend.models.file_checks import file_bytes
from backend.scheduling.ranking import SpeedFigure, by_speed, equal

if TYPE_CHECKING:
    from backend.manager.core import Core

UNITS = {"text": "tokens/s", "music": "× real time"}
BUSY = 0.75  # programs that want a processor, for each that there is: from there on it is said
CPU = "cpu"


def kept(manager: Core, measured: Measured, runs: int, source: str) -> list[Measurement]:
    """The measurements of all ways that were measured to the end."""
    surveyed = manager.probes.table.surveyed
    busy = measured.disturbed > 0 or _was_busy(measured)
    found = []
    for way in measured.ways:
        card = surveyed.get(way.candidate.device.hardware_id or "")
        facts = {"driver": card.driver if card else None, "runs": runs, "source": source, "busy": busy}
        found.append(_measurement(way, facts))
    return found


def result(manager: Core, measured: Measured, found: Sequence[Measurement]) -> dict[str, Any]:
    """The result of the job: `report`, with `words`, what was `skipped`, and what is kept (`measured`)."""
    rows: list[Row] = []
    words: list[str] = []
    for model in dict.fromkeys(way.candidate.entry.id for way in measured.ways):
        ways = [way for way in measured.ways if way.candidate.entry.id == model]
        rows += [row for way in ways for row in _rows(way, ways)]
        words += _words(ways)
    if measured.disturbed:
        words.append(f"Other jobs ran during {measured.disturbed} of the rounds, which slows what is measured.")
    if measured.load is not None and _was_busy(measured):
        words.append(f"The machine was busy with other work ({measured.load:.1f} programs a processor) at the start.")
    names = [item.name for item in manager.hardware()]
    said = report("devices", rows)
    said["machine"]["hardware"] = names
    skipped = [asdict(one) for one in measured.skipped]
    return {**said, "words": words, "skipped": skipped, "measured": [asdict(one) for one in found]}


def _measurement(way: MeasuredTarget, facts: dict[str, Any]) -> Measurement:
    one, rates = way.candidate, _values(way, "rate")
    alone = row("", rates, UNITS[one.entry.task])
    together = _median(_values(way, "together"))
    streams = way.streams if together is not None else None
    speed = Speed(
        one.entry.id, one.engine, alone.value, alone.unit, utc_now(), alone.low, alone.high, streams, together
    )
    return Measurement(
        device=one.device.id,
        card=one.device.name,
        hardware_id=one.device.hardware_id,
        runtime=one.runtime,
        versions=way.versions,
        threads=way.threads,
        model_bytes=file_bytes(one.entry.path_for(one.engine)),
        speed=speed,
        touchstone=__version__,
        first_token_s=_median(_values(way, "first_token_s")),
        prompt_per_s=_median(_values(way, "prompt_per_s")),
        load_s=way.load_s,
        memory_bytes=way.memory_bytes,
        **facts,
    )


def _was_busy(measured: Measured) -> bool:
    return measured.load is not None and measured.load > BUSY


def _rows(way: MeasuredTarget, ways: Sequence[MeasuredTarget]) -> list[Row]:
    one = way.candidate
    on: dict[str, Any] = {"device": one.device.id, "engine": one.engine, "model": one.entry.id}
    unit, name = UNITS[one.entry.task], "decode" if one.entry.task == "text" else "making"
    beside = [(name, "rate", unit, 1.0), ("first token", "first_token_s", "ms", 1000.0),
              ("prompt", "prompt_per_s", unit, 1.0), (f"{way.streams} streams", "together", unit, 1.0)]  # fmt: skip
    rows = []
    for metric, field, unit_, scale in beside:
        if values := [value * scale for value in _values(way, field)]:
            rows.append(row(metric, values, unit_, ratio=_against_cpu(way, ways, field), **on))
    rows += [row("load", [way.load_s], "s", **on)] if way.load_s is not None else []
    rows += [row("memory", [way.memory_bytes / 1e6], "MB", **on)] if way.memory_bytes else []
    rows += [row("memory of the card", [way.card_bytes / 1e6], "MB", **on)] if way.card_bytes else []
    rows += [row("power of the processors", way.watts, "W", **on)] if way.watts else []
    rows += [row("power of the card", way.card_watts, "W", **on)] if way.card_watts else []
    yardstick = ways[0]
    if way is not yardstick:
        alike, error = agreement(yardstick.sample, way.sample), sound_error(yardstick.sample, way.sample)
        rows += [row("agreement", [alike], "share", **on)] if alike is not None else []
        rows += [row("audio error", [error], "of full scale", **on)] if error is not None else []
    return rows


def _against_cpu(way: MeasuredTarget, ways: Sequence[MeasuredTarget], field: str) -> float | None:
    """How many times better than the processor's best engine; above 1 is better, also for times."""
    medians = [m for w in ways if w.candidate.device.id == CPU and (m := _median(_values(w, field))) is not None]
    own = _median(_values(way, field))
    if not medians or own is None or way.candidate.device.id == CPU and len(medians) == 1:
        return None
    return min(medians) / own if field.endswith("_s") and not field.endswith("per_s") else own / max(medians)


def _words(ways: Sequence[MeasuredTarget]) -> list[str]:
    """The order, what cannot be told apart, and what is slower than the processor."""
    model = ways[0].candidate.entry.id
    ranked = by_speed([_figure(way) for way in ways])
    listed = "; ".join(f"{one.device} with {one.engine}: {one.words}" for one in ranked)
    words = [f"{model}, the fastest first: {listed}."] if len(ranked) > 1 else [f"{model}: {listed}."]
    for one, other in zip(ranked, ranked[1:], strict=False):
        if equal(one, other):
            words.append(
                f"{_name(one)} and {_name(other)} are equally fast with {model} within the noise; they are not ranked."
            )
    processor = next((one for one in ranked if one.device == CPU), None)
    for one in ranked:
        if processor and one.device != CPU and one.value < processor.value and not equal(one, processor):
            words.append(
                f"{_name(one)} is slower than the CPU with {model}: {one.words}, against {processor.words} with "
                f"{processor.engine}."
            )
    return words


def _name(one: SpeedFigure) -> str:
    return f"{one.device} with {one.engine}"


def _figure(way: MeasuredTarget) -> SpeedFigure:
    one, rates = way.candidate, row("", _values(way, "rate"), UNITS[way.candidate.entry.task])
    return SpeedFigure(one.device.id, one.engine, rates.value, rates.low, rates.high, rates.unit, 1)


def _values(way: MeasuredTarget, field: str) -> list[float]:
    return [value for one in way.rounds if (value := getattr(one, field)) is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
