"""Measure on this machine: `bench overhead` compares the service with the engine alone."""

from __future__ import annotations

import argparse
import json

from backend.settings import load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How often to measure."""
    parser.add_argument("kind", choices=("overhead",))
    parser.add_argument("--runs", type=int, default=9, help="pairs of 128-token runs")
    parser.add_argument("--pairs", type=int, default=50, help="pairs of first tokens")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Prints the figures; nothing is judged."""
    from backend.bench.overhead import measure
    from backend.bench.rows import report, table

    found = report(args.kind, measure(load_settings({"config": args.config}), args.runs, args.pairs))
    print(json.dumps(found, indent=2) if args.json else table(found))
    return 0
