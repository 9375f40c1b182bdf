"""Measure on this machine: `bench devices` tells how fast each device is with a model, and `auto` goes by it.

`bench overhead` compares the service with the engine alone, `bench server` loads it. `bench text` compares each engine
of the default model with its bare library: alone, first token, four streams. `bench music` tells how much faster than
real time tunes are made, and what a batch of variations gains. `bench spread` tells how many jobs a minute more devices
make. `bench steps` tells what recorded and compiled steps of text on torch gain on a card, with random weights in the
shape of `--model smollm2-135m` or `llama-8b`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from backend.cli.progress_bar import ProgressBar
from backend.common.config.settings import Settings, load_settings
from backend.common.errors import Validation
from backend.manager.benchmarks import table as matrix

CALLER = "command line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and how often."""
    parser.add_argument("kind", choices=("devices", "overhead", "server", "spread", "steps", "text", "music"))
    parser.add_argument("--data-dir", help="folder for models, runtimes and history")
    parser.add_argument("--runs", type=int, help="rounds that count (devices: 5; overhead, text, music: 9)")
    parser.add_argument("--device", action="append", default=[], help="device id or alias; devices: may be repeated")
    parser.add_argument("--model", action="append", default=[], metavar="ID", help="devices: may be repeated")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME", help="devices: may be repeated")
    parser.add_argument("--streams", type=int, metavar="N", help="devices, steps: how many at once (4, 64)")
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="devices: two files of --json")
    parser.add_argument("--history", action="store_true", help="devices: what was measured before")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="devices: a picture; needs matplotlib")
    parser.add_argument("--pairs", type=int, default=50, help="overhead: pairs of first tokens")
    parser.add_argument("--small", type=Path, metavar="GGUF", help="server: a tiny model for the thousands of jobs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--markdown", action="store_true", help="tables for an issue or a page")


def run(args: argparse.Namespace) -> int:
    """Prints the figures; nothing is judged."""
    settings = load_settings({"config": args.config, "storage.data_dir": args.data_dir})
    if args.kind == "devices":
        return _devices(settings, args)
    from backend.cli.bench import music, overhead, server, spread, steps, text
    from backend.manager.benchmarks.rows import markdown, report, table

    small = args.small.resolve() if args.small else None
    runs = args.runs or 9
    measures = {
        "overhead": lambda: overhead.measure(settings, runs, args.pairs),
        "server": lambda: server.measure(settings, small),
        "text": lambda: text.measure(settings, runs),
        "music": lambda: music.measure(runs, args.device[0] if args.device else "auto"),
        "spread": lambda: spread.measure(settings, args.device, args.model, args.engine, args.runs or 3),
        "steps": lambda: steps.measure(settings, args.runs or 3, args.device, args.model, args.streams),
    }
    try:
        found = report(args.kind, measures[args.kind]())
    except Validation as error:  # of what stands on the command line
        args.misused(f"{error.detail} {error.remedy}")
    print(json.dumps(found, indent=2) if args.json else markdown(found) if args.markdown else table(found))
    return 0


def _devices(settings: Settings, args: argparse.Namespace) -> int:
    if args.compare:
        before, after = (matrix.checked(_file(name), name) for name in args.compare)
        print(matrix.compared(before, after))
        return 0
    if args.history:
        found = asyncio.run(_history(settings))
        print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else matrix.history(found["measurements"]))
        return 0
    asked = {"devices": args.device, "models": args.model, "engines": args.engine}
    numbers = {"runs": args.runs, "streams": args.streams}
    asked |= {name: number for name, number in numbers.items() if number is not None}
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        found = asyncio.run(_measured(settings, asked, bar))["output"]["result"]
    print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else matrix.markdown(found))
    if args.plot:
        from backend.cli.bench.plot import draw

        draw(found, args.plot)
    return 0


async def _measured(settings: Settings, asked: dict[str, Any], bar: ProgressBar) -> dict[str, Any]:
    """The job after its end: by the running server, or by a manager of our own."""
    from backend.cli.client import HttpClient, open_manager
    from backend.cli.job_follower import Here, follow_to_end
    from backend.manager.benchmarks.request import parse_benchmark_request

    parse_benchmark_request(asked)
    async with open_manager(settings) as found:
        if isinstance(found, HttpClient):
            return await follow_to_end(found, (await found.bench(asked))["id"], bar)
        await found.probes.wait_until_idle()
        job = await found.benchmarks.submit(parse_benchmark_request(asked), CALLER)
        return await follow_to_end(Here(found), job.id, bar)


async def _history(settings: Settings) -> dict[str, Any]:
    from dataclasses import asdict

    from backend.cli.client import remote
    from backend.manager.benchmarks.history import Measurements

    async with remote(settings) as server:
        if server:
            return await server.measurements()
    book = Measurements(settings.data_dir / "measurements.json")
    book.open()
    return {"measurements": [asdict(one) for one in book.all()]}


def _file(name: str) -> Any:
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Validation(f"{name} cannot be read: {error}.", "Give files that `bench devices --json` wrote.") from error
