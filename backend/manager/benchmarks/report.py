"""The result of a benchmark job: rows, summary sentences, and the measurements to keep for `auto`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from backend import __version__
from backend.common.timestamps import utc_now
from backend.common.types import Hardware, JsonObject, Speed
from backend.manager.benchmarks.agreement import agreement, sound_error
from backend.manager.benchmarks.history import Measurement
from backend.manager.benchmarks.rows import Row, report, row
from backend.manager.benchmarks.runner import BenchmarkResults, MeasuredTarget
from backend.models.file_checks import file_bytes
from backend.scheduling.device_directory import DeviceDirectory
from backend.scheduling.ranking import SpeedFigure, by_speed, equal

UNITS = {"text": "tokens/s", "music": "× real time"}
BUSY = 0.75  # load average per processor above which the report mentions it
CPU = "cpu"


@dataclass(frozen=True)
class _Conditions:
    """What all measurements of one benchmark share."""

    runs: int
    source: str
    busy: bool


def measurements_of(directory: DeviceDirectory, results: BenchmarkResults, runs: int, source: str) -> list[Measurement]:
    """Return the measurements to keep: one for each target that completed all rounds."""
    conditions = _Conditions(runs, source, results.disturbed > 0 or _was_busy(results))
    return [
        _measurement(target, directory.driver(target.candidate.device.hardware_id), conditions)
        for target in results.targets
    ]


def result_of(
    hardware: Sequence[Hardware], results: BenchmarkResults, measurements: Sequence[Measurement]
) -> JsonObject:
    """Return `output.result` of the job: the rows, with `words` (sentences), `skipped` and `measured`."""
    rows: list[Row] = []
    sentences: list[str] = []
    for model in dict.fromkeys(target.candidate.entry.id for target in results.targets):
        targets = [target for target in results.targets if target.candidate.entry.id == model]
        rows += [row for target in targets for row in _rows(target, targets)]
        sentences += _ranking(targets)
    if results.disturbed:
        sentences.append(f"Other jobs ran during {results.disturbed} of the rounds, which lowers the results.")
    if results.load is not None and _was_busy(results):
        sentences.append(f"The machine was busy at the start (load average {results.load:.1f} per processor).")
    summary = report("devices", rows)
    summary["machine"]["hardware"] = [item.name for item in hardware]
    skipped = [asdict(skip) for skip in results.skipped]
    measured = [asdict(measurement) for measurement in measurements]
    return {**summary, "words": sentences, "skipped": skipped, "measured": measured}


def _measurement(target: MeasuredTarget, driver: str | None, conditions: _Conditions) -> Measurement:
    candidate, rates = target.candidate, _values(target, "rate")
    alone = row("", rates, UNITS[candidate.entry.task])
    together = _median(_values(target, "together"))
    streams = target.streams if together is not None else None
    model, engine = candidate.entry.id, candidate.engine
    speed = Speed(model, engine, alone.value, alone.unit, utc_now(), alone.low, alone.high, streams, together)
    return Measurement(
        device=candidate.device.id,
        card=candidate.device.name,
        hardware_id=candidate.device.hardware_id,
        driver=driver,
        runtime=candidate.runtime,
        versions=target.versions,
        threads=target.threads,
        model_bytes=file_bytes(candidate.entry.path_for(candidate.engine)),
        speed=speed,
        runs=conditions.runs,
        source=conditions.source,
        busy=conditions.busy,
        touchstone=__version__,
        first_token_s=_median(_values(target, "first_token_s")),
        prompt_per_s=_median(_values(target, "prompt_per_s")),
        load_s=target.load_s,
        memory_bytes=target.memory_bytes,
    )


def _was_busy(results: BenchmarkResults) -> bool:
    return results.load is not None and results.load > BUSY


def _rows(target: MeasuredTarget, targets: Sequence[MeasuredTarget]) -> list[Row]:
    """Return the rows of a target; `targets` are all targets of its model."""
    candidate = target.candidate
    labels: dict[str, str] = {
        "device": candidate.device.id, "engine": candidate.engine, "model": candidate.entry.id
    }  # fmt: skip
    unit, name = UNITS[candidate.entry.task], "decode" if candidate.entry.task == "text" else "making"
    metrics = [(name, "rate", unit, 1.0), ("first token", "first_token_s", "ms", 1000.0),
               ("prompt", "prompt_per_s", unit, 1.0), (f"{target.streams} streams", "together", unit, 1.0)]  # fmt: skip
    rows = []
    for metric, field, metric_unit, scale in metrics:
        if values := [value * scale for value in _values(target, field)]:
            rows.append(row(metric, values, metric_unit, ratio=_ratio_to_cpu(target, targets, field), **labels))
    rows += [row("load", [target.load_s], "s", **labels)] if target.load_s is not None else []
    rows += [row("memory", [target.memory_bytes / 1e6], "MB", **labels)] if target.memory_bytes else []
    rows += [row("memory of the card", [target.card_bytes / 1e6], "MB", **labels)] if target.card_bytes else []
    rows += [row("power of the processors", target.watts, "W", **labels)] if target.watts else []
    rows += [row("power of the card", target.card_watts, "W", **labels)] if target.card_watts else []
    reference = targets[0]
    if target is not reference:
        share, error = agreement(reference.sample, target.sample), sound_error(reference.sample, target.sample)
        rows += [row("agreement", [share], "share", **labels)] if share is not None else []
        rows += [row("audio error", [error], "of full scale", **labels)] if error is not None else []
    return rows


def _ratio_to_cpu(target: MeasuredTarget, targets: Sequence[MeasuredTarget], field: str) -> float | None:
    """Return how many times better a target is than the CPU's best engine. Above 1 is better, also for times.

    None for the CPU's only engine, and without a measurement of the CPU.
    """
    medians = [m for t in targets if t.candidate.device.id == CPU and (m := _median(_values(t, field))) is not None]
    own = _median(_values(target, field))
    if not medians or own is None or target.candidate.device.id == CPU and len(medians) == 1:
        return None
    return min(medians) / own if field.endswith("_s") and not field.endswith("per_s") else own / max(medians)


def _ranking(targets: Sequence[MeasuredTarget]) -> list[str]:
    """Return sentences on the targets of one model: their order, ties, and what is slower than the CPU."""
    model = targets[0].candidate.entry.id
    ranked = by_speed([_figure(target) for target in targets])
    listed = "; ".join(f"{figure.device} with {figure.engine}: {figure.words}" for figure in ranked)
    sentences = [f"{model}, the fastest first: {listed}."] if len(ranked) > 1 else [f"{model}: {listed}."]
    for faster, slower in zip(ranked, ranked[1:], strict=False):
        if equal(faster, slower):
            names = f"{_name(faster)} and {_name(slower)}"
            sentences.append(f"{names} are equally fast with {model} within the noise; they are not ranked.")
    cpu = next((figure for figure in ranked if figure.device == CPU), None)
    for figure in ranked:
        if cpu and figure.device != CPU and figure.value < cpu.value and not equal(figure, cpu):
            sentences.append(
                f"{_name(figure)} is slower than the CPU with {model}: {figure.words}, against {cpu.words} with "
                f"{cpu.engine}."
            )
    return sentences


def _name(figure: SpeedFigure) -> str:
    return f"{figure.device} with {figure.engine}"


def _figure(target: MeasuredTarget) -> SpeedFigure:
    candidate = target.candidate
    rate = row("", _values(target, "rate"), UNITS[candidate.entry.task])
    return SpeedFigure(candidate.device.id, candidate.engine, rate.value, rate.low, rate.high, rate.unit, 1)


def _values(target: MeasuredTarget, field: str) -> list[float]:
    return [value for figures in target.rounds if (value := getattr(figures, field)) is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
