"""The result of `bench devices` for people: a table of ways by figures, its sentences, and two results side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backend.common.errors import Validation
from backend.scheduling.ranking import NOISE

Key = tuple[str, str, str, str]  # model, device, engine, metric


def markdown(found: Mapping[str, Any]) -> str:
    """The report as Markdown: medians, with the quartiles where they differ."""
    lines = [f"**bench devices**, {found['at']}: {_machine(found)}", ""]
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["model"] == model]
        metrics = list(dict.fromkeys(row["metric"] for row in rows))
        units = {row["metric"]: row["unit"] for row in rows}
        lines += [f"| {model} | {' | '.join(f'{name}, {units[name]}' for name in metrics)} |"]
        lines += ["|---|" + "---|" * len(metrics)]
        for way in dict.fromkeys((row["device"], row["engine"]) for row in rows):
            own = {row["metric"]: row for row in rows if (row["device"], row["engine"]) == way}
            cells = (_cell(own[name]) if name in own else "–" for name in metrics)
            lines.append(f"| {way[0]}, {way[1]} | {' | '.join(cells)} |")
        lines.append("")
    lines += [f"- {words}" for words in found.get("words", ())]
    lines += [f"- Not measured: {_skipped(one)}" for one in found.get("skipped", ())]
    return "\n".join(lines)


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Two results side by side as Markdown. Raises Validation for what is no result of a benchmark."""
    old, new = _by_key(before), _by_key(after)
    both = [key for key in old if key in new]
    if not both:
        raise Validation("The two results have no figure in common.", "Compare results of the same models and devices.")
    lines = [
        f"{before['at']} against {after['at']}: {_machine(before)}" + _other_machine(before, after),
        "",
        "| model | device, engine | figure | before | after | change |",
        "|---|---|---|---|---|---|",
    ]
    for key in both:
        one, other = old[key], new[key]
        change = other["value"] / one["value"] - 1 if one["value"] else 0.0
        told = "within the noise" if _same(one, other) else f"{change:+.0%}"
        model, device, engine, metric = key
        cells = (model, f"{device}, {engine}", f"{metric}, {one['unit']}", _cell(one), _cell(other), told)
        lines.append(f"| {' | '.join(cells)} |")
    missing = [*(key for key in old if key not in new), *(key for key in new if key not in old)]
    lines += ["", f"In one of them alone: {len(missing)} figures."] if missing else []
    busy = [name for name, found in (("the first", before), ("the second", after)) if _busy(found)]
    lines += ["", f"Other programs or jobs ran during {' and '.join(busy)}: changes may be theirs."] if busy else []
    return "\n".join(lines)


def history(measurements: Iterable[Mapping[str, Any]]) -> str:
    """What was measured before as Markdown, oldest first."""
    lines = ["| at | model | device, engine | rate | versions |", "|---|---|---|---|---|"]
    for one in measurements:
        speed = one["speed"]
        spread = f" ({_number(speed['low'])}–{_number(speed['high'])})" if speed["low"] != speed["high"] else ""
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        driver = f", driver {one['driver']}" if one["driver"] else ""
        rate = f"{_number(speed['value'])} {speed['unit']}{spread}"
        where = f"{one['device']}, {speed['engine']}"
        lines.append(f"| {speed['at']} | {speed['model']} | {where} | {rate} | {versions}{driver} |")
    return "\n".join(lines) if len(lines) > 2 else "Nothing was measured yet."


def checked(found: Any, name: str) -> dict[str, Any]:
    """A result that was read from a file. Raises Validation."""
    rows = found.get("rows") if isinstance(found, dict) else None
    wanted = ("metric", "value", "unit", "low", "high", "device", "engine", "model")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(wanted) <= set(row) for row in rows):
        raise Validation(f"{name} is no result of a benchmark.", "Give files that `bench devices --json` wrote.")
    return {"at": "?", "machine": {}, **found}


def _by_key(found: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    return {(row["model"], row["device"], row["engine"], row["metric"]): row for row in found["rows"]}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the spreads meet or the values differ by less than a machine's pace."""
    slow, fast = sorted((one, other), key=lambda row: float(row["value"]))
    return bool(slow["high"] >= fast["low"] or slow["value"] >= (1 - NOISE) * fast["value"])


def _cell(row: Mapping[str, Any]) -> str:
    spread = f" ({_number(row['low'])}–{_number(row['high'])})" if row["low"] != row["high"] else ""
    ratio = f", {row['ratio']:.2f} × CPU" if row.get("ratio") is not None else ""
    return f"{_number(row['value'])}{spread}{ratio}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _busy(found: Mapping[str, Any]) -> bool:
    return any(one.get("busy") for one in found.get("measured", ()))


def _machine(found: Mapping[str, Any]) -> str:
    machine = found.get("machine", {})
    names: Iterable[str] = machine.get("hardware") or [machine.get("system", "an unknown machine")]
    return f"{', '.join(names)}, {machine.get('threads', '?')} threads"


def _other_machine(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return "" if _machine(before) == _machine(after) else f" against {_machine(after)}"


def _skipped(one: Mapping[str, Any]) -> str:
    where = ", ".join(str(one[name]) for name in ("device", "engine", "model") if one[name])
    return f"{where}: {one['reason']}"
