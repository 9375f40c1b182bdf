"""Tell whether the service runs on the data folder, where, and how it is; the exit code is 1 if it does not."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from typing import Any

from backend.cli import daemon
from backend.common.config.settings import load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which one."""
    parser.add_argument("--data-dir")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Prints its health."""
    found = daemon.running(load_settings({"config": args.config, "storage.data_dir": args.data_dir}))
    if args.json:
        print(json.dumps(found))
    else:
        print(_page(found) if found else "No server runs on this data folder. `start` starts one.")
    return 0 if found else 1


def _page(found: dict[str, Any]) -> str:
    devices = ", ".join(f"{count} {state}" for state, count in found["devices"].items() if count)
    up = timedelta(seconds=round(found["uptime_s"]))
    lines = [
        f"Touchstone {found['version']} at {found['url']} (process {found['pid']}): {found['status']}, up {up}",
        f"Devices: {devices or 'none'}",
        f"Jobs: {found['jobs']['queued']} queued, {found['jobs']['running']} running",
    ]
    for problem in found.get("problems", []):  # strangers to a server with a token are told none
        lines += [f"Problem ({problem['subject']}): {problem['detail']}", f"  {problem['remedy']}"]
    return "\n".join(lines)
