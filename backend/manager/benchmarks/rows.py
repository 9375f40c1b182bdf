"""Benchmark results as rows: median, quartiles, and the ratio to a reference."""

from __future__ import annotations

import contextlib
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from backend import __version__
from backend.common.system.resources import memory_bytes, usable_threads
from backend.common.timestamps import utc_now
from backend.common.types import JsonObject


@dataclass(frozen=True)
class Row:
    """One metric: the median as `value`, the quartiles as `low` and `high`. Optional: its `ratio` to the reference."""

    metric: str
    value: float
    unit: str
    low: float
    high: float
    ratio: float | None = None
    device: str | None = None
    engine: str | None = None
    model: str | None = None


def row(metric: str, values: Sequence[float], unit: str, **more: Any) -> Row:
    """Return the row for repeated measurements. `more` sets the other fields of Row."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Row(metric, statistics.median(values), unit, low, high, **more)


def report(kind: str, rows: Sequence[Row]) -> JsonObject:
    """Return rows with machine, versions and time, so that they can be compared later."""
    packages = ("xllamacpp", "onnxruntime", "fastapi", "uvicorn")
    return {
        "kind": kind,
        "machine": {"system": platform.platform(), "threads": usable_threads(), "memory_bytes": memory_bytes()},
        "versions": {"touchstone": __version__, **_versions(packages)},
        "at": utc_now(),
        "rows": [vars(row) for row in rows],
    }


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the installed packages."""
    versions = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def table(result: JsonObject) -> str:
    """Return a report as plain text."""
    machine = result["machine"]
    lines = [f"bench {result['kind']}: median (quartiles), {machine['threads']} threads, {machine['system']}"]
    for each in result["rows"]:
        spread = f" ({each['low']:.2f} … {each['high']:.2f})" if each["low"] != each["high"] else ""
        ratio = f", {each['ratio']:.3f} of the reference" if each["ratio"] is not None else ""
        lines.append(f"  {each['metric']:<34} {each['value']:9.2f} {each['unit']}{spread}{ratio}")
    return "\n".join(lines)


def markdown(result: JsonObject) -> str:
    """Return a report as a Markdown table."""
    machine = result["machine"]
    lines = [
        f"**bench {result['kind']}**, {result['at']}: {machine['threads']} threads, {machine['system']}",
        "",
        "| metric | median | quartiles | ratio to reference |",
        "|---|---|---|---|",
    ]
    for each in result["rows"]:
        spread = f"{each['low']:.2f} … {each['high']:.2f}" if each["low"] != each["high"] else ""
        ratio = f"{each['ratio']:.3f}" if each["ratio"] is not None else ""
        lines.append(f"| {each['metric']} | {each['value']:.2f} {each['unit']} | {spread} | {ratio} |")
    return "\n".join(lines)


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of another process, 0 if unknown. Linux only."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0
