"""`bench steps`: text on torch by each way to compute a step, in the engine itself, beside the bare library.

Random weights in the shapes of known models, made where they are needed. The first run begins with nothing compiled;
the second one finds what the first one left, as a worker does that is started again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from backend.child.handle import environment
from backend.cli.bench.harness import bare_torch
from backend.common.config.settings import Settings
from backend.common.errors import DeviceNotReady, RuntimeFailed, Validation
from backend.devices import backends, split_id
from backend.engines._torch.cuda_graphs import COMPILED
from backend.manager.benchmarks.rows import Row
from backend.runtimes.store import RUNTIMES, RuntimeStore

STREAMS = 64
_AGAIN = "compiled before"


def measure(
    settings: Settings, runs: int, devices: Sequence[str], shapes: Sequence[str], streams: int | None
) -> list[Row]:
    """A row a figure. Nothing else should run meanwhile.

    Raises Validation for what cannot be measured, DeviceNotReady where no runtime reaches the device.
    """
    if len(devices) != 1 or not re.fullmatch(r"[a-z-]+(:\d+)?", devices[0]):
        raise Validation("One device is measured at a time.", "Name it by its id: --device ID.")
    device = devices[0]
    if split_id(device)[0] not in backends():
        raise Validation(f"{device} is no device that is known.", "See the verb `devices` for their ids.")
    if other := sorted(set(shapes) - bare_torch.SHAPES.keys()):
        raise Validation(f"{other[0]} is no shape that is known.", f"Choose of {', '.join(bare_torch.SHAPES)}.")
    python = _interpreter(settings, device)
    rows = []
    for shape in shapes or ["smollm2-135m"]:
        with tempfile.TemporaryDirectory() as cache:
            words = [device, shape, str(streams or STREAMS), str(runs), cache]
            found = _told(python, words)
            again = _told(python, [*words, COMPILED]) if device != "cpu" else []
        yardstick = next(one["value"] for one in found if one["metric"] == "generate, alone")
        for one in [*found, *({**one, "metric": f"{_AGAIN}, {one['metric']}"} for one in again)]:
            rows.append(_row(one, yardstick, device, shape))
    return rows


def _row(told: dict[str, Any], yardstick: float, device: str, shape: str) -> Row:
    value = told["value"]
    return Row(
        metric=f"{shape}, {told['metric']}",
        value=value,
        unit=told["unit"],
        low=told.get("low", value),
        high=told.get("high", value),
        ratio=value / yardstick if told["unit"] == "tokens/s" else None,
        device=device,
        engine="transformers",
        model=shape,
    )


def _told(python: str, words: list[str]) -> list[dict[str, Any]]:
    """The figures of the program. Raises RuntimeFailed where it ends before it has told them."""
    command = [python, "-I", bare_torch.__file__, *words]
    done = subprocess.run(command, env=environment(os.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeFailed(f"The program that measures steps failed: {told}"[:600], "See whether the device is free.")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if "metric" in line]


def _interpreter(settings: Settings, device: str) -> str:
    """That of a runtime with torch for the device. Raises DeviceNotReady where there is none."""
    runtimes = [name for name in backends()[split_id(device)[0]].runtimes if name != "base"]
    named = {name: str(rules.python) for name, rules in settings.runtimes.items() if rules.python}
    pythons = {**RuntimeStore(settings.data_dir / RUNTIMES).pythons(runtimes), **named}
    for name in runtimes:
        if name in pythons:
            return pythons[name]
    raise DeviceNotReady(
        f"No runtime with torch is here that reaches {device}.",
        f"Install one: python -m backend runtimes install {runtimes[0] if runtimes else 'torch'}.",
    )
