"""A bar chart of `bench devices`, with error bars. Requires matplotlib, which the service does not install."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.common.errors import Validation

RATES = ("decode", "making")


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Write the chart. Raises Validation if matplotlib is missing or the file cannot be written."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        plots = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise Validation(
            f"matplotlib cannot be imported: {error}.",
            f"Install it: {sys.executable} -m pip install matplotlib, or omit --plot.",
        ) from error
    rows = [row for row in result["rows"] if row["metric"] in RATES]
    figure, axis = plots.subplots(figsize=(8, 1 + 0.5 * len(rows)))
    names = [f"{row['model']}\n{row['device']}, {row['engine']}" for row in rows]
    values = [row["value"] for row in rows]
    spread = [[max(0, row["value"] - row["low"]) for row in rows], [max(0, row["high"] - row["value"]) for row in rows]]
    axis.barh(names, values, xerr=spread)
    axis.invert_yaxis()
    axis.set_xlabel(", ".join(dict.fromkeys(row["unit"] for row in rows)))
    figure.tight_layout()
    try:
        figure.savefig(file, dpi=100)
    except (OSError, ValueError) as error:
        raise Validation(f"{file} cannot be written: {error}.", "Name a .png or .svg file.") from error
    plots.close(figure)
