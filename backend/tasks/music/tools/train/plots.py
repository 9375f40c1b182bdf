"""The figures of docs/music.md, from the results of `sweep` and `evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from backend.common.types import JsonObject

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

DOTTED = ("hornpipe", "strathspey", "march")
TICKS = {6: "1/16", 8: "triplet", 12: "1/8", 18: "1/8.", 24: "1/4", 36: "1/4.", 48: "1/2"}


def plots(sweeps: Sequence[Path], evaluation: Path, folder: Path) -> list[str]:
    """Write three PNG files and return their names."""
    results = json.loads(evaluation.read_text("utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in (
        ("validation.png", lambda: _curves([json.loads(path.read_text("utf-8")) for path in sweeps])),
        ("bits.png", lambda: _bits(results["test"])),
        ("rhythm.png", lambda: _rhythm(results["samples"]["rhythm"])),
    ):
        figure: Any = draw()  # type: ignore[no-untyped-call]
        figure.tight_layout()
        figure.savefig(folder / name, dpi=80)
        plt.close(figure)
        files.append(name)
    return files


def _curves(sweeps: Sequence[JsonObject]) -> Any:
    figure, axis = plt.subplots(figsize=(8, 4))
    best = min(each["valid"] for sweep in sweeps for each in sweep.values())
    for colour, sweep in zip(("tab:grey", "tab:blue"), sweeps, strict=False):
        for name, each in sweep.items():
            points = [(point["step"], point["valid"]) for point in each["curve"]]
            style: dict[str, Any] = {"color": colour, "alpha": 0.6}
            if name == "blindall":
                style = {"color": "black", "linestyle": "--", "label": "without echoes"}
            if each["valid"] == best:
                style = {"color": "tab:red", "linewidth": 2.5, "label": "released"}
            axis.plot(*zip(*points, strict=True), **style)
    axis.set(xlabel="steps of 32 tunes", ylabel="bits per note, validation", ylim=(1.95, 2.6))
    axis.legend()
    return figure


def _bits(test: JsonObject) -> Any:
    figure, axis = plt.subplots(figsize=(8, 3.5))
    forms = list(test["by form"])
    positions = range(len(forms))
    axis.bar(
        [place - 0.2 for place in positions], [test["n-gram 5 by form"][form] for form in forms], 0.4, label="5-gram"
    )
    axis.bar([place + 0.2 for place in positions], [test["by form"][form] for form in forms], 0.4, label="model")
    axis.set_xticks(list(positions), ["unlabelled" if form == "any" else form for form in forms])
    axis.set_ylabel("bits per note, test")
    axis.legend()
    return figure


def _rhythm(rhythm: JsonObject) -> Any:
    figure, axes = plt.subplots(1, len(DOTTED), figsize=(10, 3), sharey=True)
    for axis, form in zip(axes, DOTTED, strict=True):
        for shift, name in ((-0.2, "real"), (0.2, "generated")):
            shares = [rhythm[form][name].get(str(ticks), 0) for ticks in TICKS]
            axis.bar([place + shift for place in range(len(TICKS))], shares, 0.4, label=name)
        axis.set_xticks(range(len(TICKS)), list(TICKS.values()), rotation=60)
        axis.set_title(form)
    axes[0].set_ylabel("share of notes")
    axes[0].legend()
    return figure
