"""Measure on this machine: `bench overhead` compares the service with the engine alone, `bench server` loads it.

`bench text` compares each engine of the default model with its bare library: alone, first token, four streams.
`bench music` tells how much faster than real time tunes are made, and what a batch of variations gains.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from backend.settings import load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and how often."""
    parser.add_argument("kind", choices=("overhead", "server", "text", "music"))
    parser.add_argument("--runs", type=int, default=9, help="overhead, text: rounds; music: tunes of 30 s")
    parser.add_argument("--pairs", type=int, default=50, help="overhead: pairs of first tokens")
    parser.add_argument("--small", type=Path, metavar="GGUF", help="server: a tiny model for the thousands of jobs")
    parser.add_argument("--device", default="auto", help="music: device id, alias, or auto")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Prints the figures; nothing is judged."""
    from backend.bench import music, overhead, server, text
    from backend.bench.rows import report, table

    settings = load_settings({"config": args.config})
    small = args.small.resolve() if args.small else None
    measures = {
        "overhead": lambda: overhead.measure(settings, args.runs, args.pairs),
        "server": lambda: server.measure(settings, small),
        "text": lambda: text.measure(settings, args.runs),
        "music": lambda: music.measure(args.runs, args.device),
    }
    found = report(args.kind, measures[args.kind]())
    print(json.dumps(found, indent=2) if args.json else table(found))
    return 0
