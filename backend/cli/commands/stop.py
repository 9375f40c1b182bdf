"""Stop the service of a data folder, in the background or on a terminal; running jobs are interrupted."""

from __future__ import annotations

import argparse

from backend.cli.commands._settings import DATA_DIR_HELP, settings_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag that chooses the service."""
    parser.add_argument("--data-dir", metavar="FOLDER", help=DATA_DIR_HELP)


def run(args: argparse.Namespace) -> int:
    """Return 0, also if no service runs. Raises Internal if it does not end in time."""
    from backend.cli import daemon

    stopped = daemon.stop(settings_from(args))
    print("Stopped." if stopped else "No server runs on this data folder.")
    return 0
