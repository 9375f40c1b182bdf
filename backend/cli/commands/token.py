"""Show the token that this folder's server wants from other machines, or make a new one.

A new one counts at once, also for a server that runs: the old one opens nothing any more, and pages ask for it again.
"""

from __future__ import annotations

import argparse
import sys

from backend.common.config.settings import load_settings
from backend.server.auth_token import kept_token, make_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One word."""
    parser.add_argument("action", choices=["show", "rotate"])


def run(args: argparse.Namespace) -> int:
    """Prints the token alone, so that a script can use it."""
    settings = load_settings({"config": args.config})
    if settings.server.token and args.action == "rotate":
        print(
            "touchstone: The token is set by the configuration or TOUCHSTONE_TOKEN.\n"
            "  Change it there and restart the server; or remove it there, and run this again.",
            file=sys.stderr,
        )
        return 1
    token = settings.server.token or (
        make_token(settings.data_dir) if args.action == "rotate" else kept_token(settings.data_dir)
    )
    if token is None:
        print("touchstone: There is no token.\n  `token rotate` makes one.", file=sys.stderr)
        return 1
    print(token)
    return 0
