"""Start the service and serve until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags win over the environment and config.yaml."""
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8000; 0 takes any free one)")
    parser.add_argument("--data-dir", help="folder for models and history")
    parser.add_argument("--device", help="what `auto` means")
    parser.add_argument(
        "--container", action="store_true", help="make a token where one is needed and missing, as the Dockerfile does"
    )
    parser.add_argument("--log-file", metavar="FILE", help="log to this file instead of stderr")
    parser.add_argument("--json-log", action="store_true", default=None, help="one JSON object a line in the log")


def run(args: argparse.Namespace) -> int:
    """Serves; 0 after SIGINT or SIGTERM, also before it serves. What it writes is for its user alone."""
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    gc.disable()  # what imports make stays: searching it again and again for rubbish only delays the start
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # looking for some reads the metadata of every package
    from backend.common.config.settings import load_settings
    from backend.server import log_format
    from backend.server.process import serve

    gc.freeze()
    gc.enable()

    flags = {
        "config": args.config,
        "server.host": args.host,
        "server.port": args.port,
        "storage.data_dir": args.data_dir,
        "device": args.device,
        "log.json": args.json_log,
        "log.file": args.log_file,
    }
    settings = load_settings(flags)
    log_format.configure(settings)
    asyncio.run(serve(settings, lambda line: print(line, flush=True), args.container))
    return 0
