"""Show whether the service of a data folder runs, its address and its health; exit code 1 if it does not run."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta

from backend.cli.commands._settings import DATA_DIR_HELP, settings_from
from backend.common.commands import command
from backend.common.types import JsonObject


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag that chooses the service, and the output format."""
    parser.add_argument("--data-dir", metavar="FOLDER", help=DATA_DIR_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON: the health with address and process, or null")


def run(args: argparse.Namespace) -> int:
    """Print the health; return 1 if no service answers."""
    from backend.cli import daemon

    server = daemon.running(settings_from(args))
    if args.json:
        print(json.dumps(server))
    else:
        print(_text(server) if server else f"No server runs on this data folder. `{command('start')}` starts one.")
    return 0 if server else 1


def _text(server: JsonObject) -> str:
    devices = ", ".join(f"{count} {state}" for state, count in server["devices"].items() if count)
    uptime = timedelta(seconds=round(server["uptime_s"]))
    lines = [
        f"Touchstone {server['version']} at {server['url']} (process {server['pid']}): {server['status']}, up {uptime}",
        f"Devices: {devices or 'none'}",
        f"Jobs: {server['jobs']['queued']} queued, {server['jobs']['running']} running",
    ]
    for problem in server.get("problems", []):  # a server with a token omits them without it
        lines += [f"Problem ({problem['subject']}): {problem['detail']}", f"  {problem['remedy']}"]
    return "\n".join(lines)
