"""Show the token that this server requires from other machines, or make a new one.

A new token takes effect immediately, also in a running server: the old one is rejected, and pages ask for the new one.
"""

from __future__ import annotations

import argparse
import sys

from backend.cli.commands._settings import settings_from
from backend.common.commands import command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action."""
    parser.add_argument("action", choices=["show", "rotate"], help="print the token, or replace it with a new one")


def run(args: argparse.Namespace) -> int:
    """Print the token alone on stdout, so that a script can read it."""
    from backend.server.auth_token import kept_token, make_token

    settings = settings_from(args)
    if settings.server.token and args.action == "rotate":
        print(
            "touchstone: The token is set by the configuration or TOUCHSTONE_TOKEN.\n"
            "  Change it there and restart the server; or remove it there and repeat this command.",
            file=sys.stderr,
        )
        return 1
    token = settings.server.token or (
        make_token(settings.data_dir) if args.action == "rotate" else kept_token(settings.data_dir)
    )
    if token is None:
        print(f"touchstone: No token exists.\n  `{command('token rotate')}` makes one.", file=sys.stderr)
        return 1
    print(token)
    return 0
