"""Start the service in the background and wait until it answers.

It logs to `logs/touchstone.log` in its data folder. If it runs already, its address is told.
"""

from __future__ import annotations

import argparse
import json

from backend.cli import daemon
from backend.common.config.settings import load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `serve` that change from start to start."""
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--data-dir")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Prints where it listens."""
    named = {"--config": args.config, "--host": args.host, "--port": args.port, "--data-dir": args.data_dir}
    flags = [word for name, value in named.items() if value is not None for word in (name, str(value))]
    settings = load_settings(
        {
            "config": args.config,
            "server.host": args.host,
            "server.port": args.port,
            "storage.data_dir": args.data_dir,
        }
    )
    before = daemon.running(settings)
    found = before or daemon.start(settings, flags)
    if args.json:
        print(json.dumps({name: found[name] for name in ("url", "pid", "version")}))
    else:
        said = "listens already" if before else "is listening"
        print(f"Touchstone {found['version']} {said} on {found['url']} (process {found['pid']}).")
    return 0
