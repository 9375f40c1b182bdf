"""`bench steps`: text on torch with each way to compute a decode step, in the engine, compared with the bare library.

Models have random weights in the shapes of known models. The first run starts with an empty compile cache, the second
one uses the cache of the first, like a restarted worker.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence

from backend.child.handle import environment
from backend.cli.bench.harness import bare_torch
from backend.common.commands import command
from backend.common.config.settings import Settings
from backend.common.errors import DeviceNotReady, RuntimeFailed, Validation
from backend.devices import backends, split_id
from backend.engines._torch.cuda_graphs import COMPILED
from backend.manager.benchmarks.rows import Row
from backend.runtimes.store import RUNTIMES, RuntimeStore
from backend.runtimes.user_environments import user_pythons
from backend.tasks.options import fill_defaults

STREAMS = 64
_AGAIN = "compiled before"
_OPTIONS = fill_defaults("text", {"temperature": 0, "top_p": 1.0, "top_k": 0, "raw": True})


def measure(
    settings: Settings, runs: int, devices: Sequence[str], shapes: Sequence[str], streams: int | None
) -> list[Row]:
    """Measure and return one row per figure. Run it on an idle machine.

    Raises Validation for wrong arguments, DeviceNotReady if no runtime supports the device.
    """
    if len(devices) != 1 or not re.fullmatch(r"[a-z-]+(:\d+)?", devices[0]):
        raise Validation("One device is measured at a time.", "Name it by its id: --device ID.")
    device = devices[0]
    if split_id(device)[0] not in backends():
        raise Validation(f"{device} is not a known device.", f"`{command('devices')}` lists the ids.")
    if other := sorted(set(shapes) - bare_torch.SHAPES.keys()):
        raise Validation(f"{other[0]} is not a known shape.", f"Choose one of {', '.join(bare_torch.SHAPES)}.")
    python = _interpreter(settings, device)
    rows = []
    for shape in shapes or ["smollm2-135m"]:
        with tempfile.TemporaryDirectory() as cache:
            words = [device, shape, str(streams or STREAMS), str(runs), cache, json.dumps(_OPTIONS)]
            figures = _run_program(python, words)
            again = _run_program(python, [*words, COMPILED]) if device != "cpu" else []
        yardstick = next(one["value"] for one in figures if one["metric"] == "generate, alone")
        for figure in again:
            figure["metric"] = f"{_AGAIN}, {figure['metric']}"
        rows += [_row(figure, yardstick, device, shape) for figure in [*figures, *again]]
    return rows


def _row(figure: bare_torch.Figure, yardstick: float, device: str, shape: str) -> Row:
    value = figure["value"]
    return Row(
        metric=f"{shape}, {figure['metric']}",
        value=value,
        unit=figure["unit"],
        low=figure.get("low", value),
        high=figure.get("high", value),
        ratio=value / yardstick if figure["unit"] == "tokens/s" else None,
        device=device,
        engine="transformers",
        model=shape,
    )


def _run_program(python: str, words: list[str]) -> list[bare_torch.Figure]:
    """Run the program and return its figures. Raises RuntimeFailed if it fails."""
    command = [python, "-I", bare_torch.__file__, *words]
    done = subprocess.run(command, env=environment(os.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeFailed(
            f"The program that measures steps failed: {message}"[:600], "Check that no other program uses the device."
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if "metric" in line]


def _interpreter(settings: Settings, device: str) -> str:
    """Return the interpreter of a runtime with torch for the device. Raises DeviceNotReady."""
    runtimes = [name for name in backends()[split_id(device)[0]].runtimes if name != "base"]
    named = user_pythons(settings)
    pythons = {**RuntimeStore(settings.data_dir / RUNTIMES).pythons(runtimes), **named}
    for name in runtimes:
        if name in pythons:
            return pythons[name]
    raise DeviceNotReady(
        f"No installed runtime with torch supports {device}.",
        f"Install one: {command('runtimes install ' + (runtimes[0] if runtimes else 'torch'))}",
    )
