"""Start the service in the background and wait until it answers.

Its log is `logs/touchstone.log` in the data folder. If the service already runs, its address is printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from backend.cli.commands._settings import DATA_DIR_HELP, settings_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `serve` that often differ between starts."""
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default: 8000; 0: any free port)")
    parser.add_argument("--data-dir", metavar="FOLDER", help=DATA_DIR_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON: url, pid, version")


def run(args: argparse.Namespace) -> int:
    """Print the address; return 0. Raises Configuration, Internal."""
    from backend.cli import daemon

    config = Path(args.config).expanduser().absolute() if args.config else None  # the server starts in another folder
    named = {"--config": config, "--host": args.host, "--port": args.port, "--data-dir": args.data_dir}
    flags = [word for name, value in named.items() if value is not None for word in (name, str(value))]
    settings = settings_from(args, server__host=args.host, server__port=args.port)
    running = daemon.running(settings)
    server = running or daemon.start(settings, flags)
    if args.json:
        print(json.dumps({name: server[name] for name in ("url", "pid", "version")}))
    else:
        verb = "listens already" if running else "is listening"
        print(f"Touchstone {server['version']} {verb} on {server['url']} (process {server['pid']}).")
    return 0
