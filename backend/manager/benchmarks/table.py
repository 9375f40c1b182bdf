"""Renders results of `bench devices` as Markdown: one result, two compared, or the history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.common.commands import command
from backend.common.errors import Validation
from backend.common.types import JsonObject
from backend.scheduling.ranking import NOISE

Result = Mapping[str, Any]  # `output.result` of a benchmark job, as JSON
RowKey = tuple[str, str, str, str]  # model, device, engine, metric


def markdown(result: Result) -> str:
    """Return a result as Markdown: medians, with the quartiles if they differ."""
    lines = [f"**bench devices**, {result['at']}: {_machine(result)}", ""]
    for model in dict.fromkeys(row["model"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["model"] == model]
        metrics = list(dict.fromkeys(row["metric"] for row in rows))
        units = {row["metric"]: row["unit"] for row in rows}
        lines += [f"| {model} | {' | '.join(f'{name}, {units[name]}' for name in metrics)} |"]
        lines += ["|---|" + "---|" * len(metrics)]
        for device, engine in dict.fromkeys((row["device"], row["engine"]) for row in rows):
            by_metric = {row["metric"]: row for row in rows if (row["device"], row["engine"]) == (device, engine)}
            cells = (_cell(by_metric[name]) if name in by_metric else "–" for name in metrics)
            lines.append(f"| {device}, {engine} | {' | '.join(cells)} |")
        lines.append("")
    lines += [f"- {sentence}" for sentence in result.get("words", ())]
    lines += [f"- Not measured: {_skipped(skip)}" for skip in result.get("skipped", ())]
    return "\n".join(lines)


def compared(before: Result, after: Result) -> str:
    """Return two results side by side as Markdown. Raises Validation if they share no row."""
    old, new = _by_key(before), _by_key(after)
    shared = [key for key in old if key in new]
    if not shared:
        raise Validation("The two results have no figure in common.", "Compare results of the same models and devices.")
    lines = [
        f"{before['at']} against {after['at']}: {_machine(before)}" + _other_machine(before, after),
        "",
        "| model | device, engine | metric | before | after | change |",
        "|---|---|---|---|---|---|",
    ]
    for key in shared:
        old_row, new_row = old[key], new[key]
        ratio = new_row["value"] / old_row["value"] - 1 if old_row["value"] else 0.0
        change = "within the noise" if _is_same(old_row, new_row) else f"{ratio:+.0%}"
        model, device, engine, metric = key
        where, figure = f"{device}, {engine}", f"{metric}, {old_row['unit']}"
        lines.append(f"| {model} | {where} | {figure} | {_cell(old_row)} | {_cell(new_row)} | {change} |")
    unshared = [*(key for key in old if key not in new), *(key for key in new if key not in old)]
    lines += ["", f"In only one of the two: {len(unshared)} figures."] if unshared else []
    busy = [name for name, result in (("the first", before), ("the second", after)) if _was_busy(result)]
    if busy:
        lines += ["", f"Other programs or jobs ran during {' and '.join(busy)}: they may have caused changes."]
    return "\n".join(lines)


def history(measurements: Iterable[Mapping[str, Any]]) -> str:
    """Return the history of measurements as Markdown, oldest first."""
    lines = ["| at | model | device, engine | rate | versions |", "|---|---|---|---|---|"]
    for measurement in measurements:
        speed = measurement["speed"]
        spread = f" ({_number(speed['low'])}–{_number(speed['high'])})" if speed["low"] != speed["high"] else ""
        versions = ", ".join(f"{name} {version}" for name, version in measurement["versions"].items())
        driver = f", driver {measurement['driver']}" if measurement["driver"] else ""
        rate = f"{_number(speed['value'])} {speed['unit']}{spread}"
        where = f"{measurement['device']}, {speed['engine']}"
        lines.append(f"| {speed['at']} | {speed['model']} | {where} | {rate} | {versions}{driver} |")
    return "\n".join(lines) if len(lines) > 2 else "Nothing was measured yet."


def checked(result: Any, name: str) -> JsonObject:
    """Return a result that was parsed from the file `name`. Raises Validation if it is not a benchmark result."""
    rows = result.get("rows") if isinstance(result, dict) else None
    needed = {"metric", "value", "unit", "low", "high", "device", "engine", "model"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) and needed <= set(row) for row in rows):
        raise Validation(
            f"{name} is not a benchmark result.", f"Use files written by `{command('bench devices --json')}`."
        )
    return {"at": "?", "machine": {}, **result}


def _by_key(result: Result) -> dict[RowKey, Mapping[str, Any]]:
    return {(row["model"], row["device"], row["engine"], row["metric"]): row for row in result["rows"]}


def _is_same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two rows are equal within the noise: their spreads overlap, or the values are close."""
    slow, fast = sorted((row, other), key=lambda each: float(each["value"]))
    return bool(slow["high"] >= fast["low"] or slow["value"] >= (1 - NOISE) * fast["value"])


def _cell(row: Mapping[str, Any]) -> str:
    spread = f" ({_number(row['low'])}–{_number(row['high'])})" if row["low"] != row["high"] else ""
    ratio = f", {row['ratio']:.2f} × CPU" if row.get("ratio") is not None else ""
    return f"{_number(row['value'])}{spread}{ratio}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _was_busy(result: Result) -> bool:
    return any(measurement.get("busy") for measurement in result.get("measured", ()))


def _machine(result: Result) -> str:
    machine = result.get("machine", {})
    names: Iterable[str] = machine.get("hardware") or [machine.get("system", "an unknown machine")]
    return f"{', '.join(names)}, {machine.get('threads', '?')} threads"


def _other_machine(before: Result, after: Result) -> str:
    return "" if _machine(before) == _machine(after) else f" against {_machine(after)}"


def _skipped(skip: Mapping[str, Any]) -> str:
    where = ", ".join(str(skip[name]) for name in ("device", "engine", "model") if skip[name])
    return f"{where}: {skip['reason']}"
