"""Start the service and serve until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys

from backend.cli.commands._settings import DATA_DIR_HELP, settings_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags, which override the environment and config.yaml."""
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default: 8000; 0: any free port)")
    parser.add_argument("--data-dir", metavar="FOLDER", help=DATA_DIR_HELP)
    parser.add_argument("--device", help="the device that `auto` selects (default: the best one that works)")
    parser.add_argument(
        "--container",
        action="store_true",
        help="make a token if one is required and none exists, as in the image",
    )
    parser.add_argument("--log-file", metavar="FILE", help="write the log to this file instead of stderr")
    parser.add_argument("--json-log", action="store_true", default=None, help="log one JSON object per line")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM and return 0. Files that it writes are readable by its user only."""
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    gc.disable()  # objects made by imports stay alive: collecting them again and again only delays the start
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # a search for plug-ins reads every package's metadata
    settings = settings_from(
        args,
        server__host=args.host,
        server__port=args.port,
        device=args.device,
        log__json=args.json_log,
        log__file=args.log_file,
    )
    from backend.server import log_format
    from backend.server.process import serve
    from backend.server.stop_watchdog import StopWatchdog

    gc.freeze()
    gc.enable()
    log_format.configure(settings)
    watchdog = StopWatchdog()
    asyncio.run(serve(settings, lambda line: print(line, flush=True), args.container, on_stopping=watchdog.arm))
    return 0
