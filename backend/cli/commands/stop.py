"""Stop the service that runs on the data folder, in the background or on a terminal; running jobs are interrupted."""

from __future__ import annotations

import argparse

from backend.cli import daemon
from backend.common.config.settings import load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which one."""
    parser.add_argument("--data-dir")


def run(args: argparse.Namespace) -> int:
    """0 also if none runs."""
    stopped = daemon.stop(load_settings({"config": args.config, "storage.data_dir": args.data_dir}))
    print("Stopped." if stopped else "No server runs on this data folder.")
    return 0
