"""Measure speed on this machine: of devices, of engines, and what the service adds to both.

`bench devices` measures each device with a model; `auto` uses the result. `bench overhead` compares the service with
the engine alone, `bench server` puts the service under load. `bench text` compares each engine of the default model
with its bare library: decode rate, latency of the first token, throughput of four streams. `bench music` measures how
much faster than real time tunes are made, and the gain of a batch of variations. `bench spread` measures the
throughput of several devices in jobs per minute. `bench steps` measures compiled and recorded decode steps of torch on
a GPU, with random weights in the shape of `--model smollm2-135m` or `llama-8b`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.cli.commands._settings import DATA_DIR_HELP, settings_from
from backend.cli.progress_bar import ProgressBar
from backend.common.commands import command
from backend.common.errors import Validation
from backend.common.types import JsonObject

if TYPE_CHECKING:
    from backend.common.config.settings import Settings

CALLER = "command line"
KINDS = ("devices", "overhead", "server", "spread", "steps", "text", "music")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, and how often."""
    parser.add_argument("kind", choices=KINDS, help="what to measure")
    parser.add_argument("--data-dir", metavar="FOLDER", help=DATA_DIR_HELP)
    parser.add_argument("--runs", type=int, help="measured rounds (default: devices 5; overhead, text, music 9)")
    parser.add_argument("--device", action="append", default=[], metavar="ID", help="device id; devices: repeatable")
    parser.add_argument("--model", action="append", default=[], metavar="ID", help="model id; devices: repeatable")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME", help="engine; devices: repeatable")
    parser.add_argument("--streams", type=int, metavar="N", help="concurrent streams (default: devices 4, steps 64)")
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="devices: two files of --json")
    parser.add_argument("--history", action="store_true", help="devices: print earlier measurements")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="devices: draw a chart; requires matplotlib")
    parser.add_argument("--pairs", type=int, default=50, help="overhead: number of pairs of first tokens (default: 50)")
    parser.add_argument("--small", type=Path, metavar="GGUF", help="server: a small model for thousands of jobs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print tables in Markdown")


def run(args: argparse.Namespace) -> int:
    """Print the figures and return 0."""
    settings = settings_from(args)
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
        result = report(args.kind, measures[args.kind]())
    except Validation as error:  # of the command line
        args.misused(f"{error.detail} {error.remedy}")
    print(json.dumps(result, indent=2) if args.json else markdown(result) if args.markdown else table(result))
    return 0


def _devices(settings: Settings, args: argparse.Namespace) -> int:
    from backend.manager.benchmarks import table as device_table

    if args.compare:
        before, after = (device_table.checked(_read_json(name), name) for name in args.compare)
        print(device_table.compared(before, after))
        return 0
    if args.history:
        past = asyncio.run(_history(settings))
        text = json.dumps(past, indent=2, ensure_ascii=False) if args.json else None
        print(text or device_table.history(past["measurements"]))
        return 0
    request = {"devices": args.device, "models": args.model, "engines": args.engine}
    numbers = {"runs": args.runs, "streams": args.streams}
    request |= {name: number for name, number in numbers.items() if number is not None}
    with contextlib.closing(ProgressBar(sys.stderr)) as bar:
        result = asyncio.run(_measure_devices(settings, request, bar))["output"]["result"]
    print(json.dumps(result, indent=2, ensure_ascii=False) if args.json else device_table.markdown(result))
    if args.plot:
        from backend.cli.bench.plot import draw

        draw(result, args.plot)
    return 0


async def _measure_devices(settings: Settings, request: JsonObject, bar: ProgressBar) -> JsonObject:
    """Run the benchmark job in the running server or in this process, and return the finished job."""
    from backend.cli.client import HttpClient, open_manager
    from backend.cli.job_follower import ManagerJobs, follow_to_end
    from backend.manager.benchmarks.request import parse_benchmark_request

    parse_benchmark_request(request)
    async with open_manager(settings) as manager:
        if isinstance(manager, HttpClient):
            return await follow_to_end(manager, (await manager.bench(request))["id"], bar)
        await manager.probes.wait_until_idle()
        job = await manager.benchmarks.submit(parse_benchmark_request(request), CALLER)
        return await follow_to_end(ManagerJobs(manager), job.id, bar)


async def _history(settings: Settings) -> JsonObject:
    from dataclasses import asdict

    from backend.cli.client import remote
    from backend.manager.benchmarks.history import Measurements

    async with remote(settings) as server:
        if server:
            return await server.measurements()
    measurements = Measurements(settings.data_dir / "measurements.json")
    measurements.open()
    return {"measurements": [asdict(measurement) for measurement in measurements.all()]}


def _read_json(name: str) -> Any:
    """Return the content of a JSON file. Raises Validation."""
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        remedy = f"Name files that `{command('bench devices --json')}` wrote."
        raise Validation(f"{name} cannot be read: {error}.", remedy) from error
