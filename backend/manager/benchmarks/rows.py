"""What a benchmark found, as rows: the median, the spread, and against what it was measured."""

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


@dataclass(frozen=True)
class Row:
    """One figure: median, with the quartiles as `low` and `high`, and its ratio to the yardstick if it has one."""

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
    """Sums up repeated measurements."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Row(metric, statistics.median(values), unit, low, high, **more)


def report(kind: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The rows with what is needed to read them later."""
    packages = ("xllamacpp", "onnxruntime", "fastapi", "uvicorn")
    return {
        "kind": kind,
        "machine": {"system": platform.platform(), "threads": usable_threads(), "memory_bytes": memory_bytes()},
        "versions": {"touchstone": __version__, **_versions(packages)},
        "at": utc_now(),
        "rows": [vars(row) for row in rows],
    }


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are here: not every system has all."""
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def table(found: dict[str, Any]) -> str:
    """The report for people."""
    machine = found["machine"]
    lines = [f"bench {found['kind']}: median (quartiles), {machine['threads']} threads, {machine['system']}"]
    for each in found["rows"]:
        spread = f" ({each['low']:.2f} … {each['high']:.2f})" if each["low"] != each["high"] else ""
        ratio = f", {each['ratio']:.3f} of the yardstick" if each["ratio"] is not None else ""
        lines.append(f"  {each['metric']:<34} {each['value']:9.2f} {each['unit']}{spread}{ratio}")
    return "\n".join(lines)


def markdown(found: dict[str, Any]) -> str:
    """The report as a table for an issue or a page."""
    machine = found["machine"]
    lines = [
        f"**bench {found['kind']}**, {found['at']}: {machine['threads']} threads, {machine['system']}",
        "",
        "| figure | median | quartiles | of the yardstick |",
        "|---|---|---|---|",
    ]
    for each in found["rows"]:
        spread = f"{each['low']:.2f} … {each['high']:.2f}" if each["low"] != each["high"] else ""
        ratio = f"{each['ratio']:.3f}" if each["ratio"] is not None else ""
        lines.append(f"| {each['metric']} | {each['value']:.2f} {each['unit']} | {spread} | {ratio} |")
    return "\n".join(lines)


def resident_bytes(pid: int) -> int:
    """Resident bytes of another process; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0
