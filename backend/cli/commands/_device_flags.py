"""The flags that name devices for a job: one, or several that share it."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from backend.common.types import Fallback


def add_devices(parser: argparse.ArgumentParser, parallel: str, sequential: str, first_free: str | None = None) -> None:
    """`--device`, which may be given again, how several are used, and what follows if they cannot."""
    parser.add_argument("--device", action="append", help="device id, alias, or auto; may be given again")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--parallel", dest="spread", action="store_const", const="parallel", help=parallel)
    how.add_argument("--sequential", dest="spread", action="store_const", const="sequential", help=sequential)
    if first_free:
        how.add_argument("--first-free", dest="spread", action="store_const", const="first_free", help=first_free)
    parser.add_argument("--engine", help="engine name (default: the model's first that fits the device)")
    parser.add_argument("--fallback", choices=get_args(Fallback), default="cpu", help="where to run if they cannot")


def devices_of(args: argparse.Namespace) -> dict[str, Any]:
    """The request's keys for them."""
    named: list[str] = args.device or ["auto"]
    places: dict[str, Any] = {"device": named[0]} if len(named) == 1 else {"devices": named}
    return {**places, "fallback": args.fallback, **({"engine": args.engine} if args.engine else {})}
