"""Flags that choose the devices of a job: one device, or several that share the job."""

from __future__ import annotations

import argparse
from typing import get_args

from backend.common.types import Fallback, JsonObject


def add_devices(parser: argparse.ArgumentParser, parallel: str, sequential: str, first_free: str | None = None) -> None:
    """Add `--device`, the flags for several devices with these help texts, `--engine` and `--fallback`."""
    parser.add_argument("--device", action="append", help="device id, alias, or auto; repeat the flag for several")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--parallel", dest="spread", action="store_const", const="parallel", help=parallel)
    how.add_argument("--sequential", dest="spread", action="store_const", const="sequential", help=sequential)
    if first_free:
        how.add_argument("--first-free", dest="spread", action="store_const", const="first_free", help=first_free)
    add_engine_and_fallback(parser)


def add_engine_and_fallback(parser: argparse.ArgumentParser) -> None:
    """Add `--engine` and `--fallback`."""
    parser.add_argument("--engine", help="engine name (default: the model's first engine that supports the device)")
    choices = get_args(Fallback)
    parser.add_argument(
        "--fallback", choices=choices, default="cpu", help="where to run if the device fails (default: cpu)"
    )


def device_keys(args: argparse.Namespace) -> JsonObject:
    """Return the request's keys `device` or `devices`, `fallback` and, if given, `engine`."""
    named: list[str] = args.device or ["auto"]
    places: JsonObject = {"device": named[0]} if len(named) == 1 else {"devices": named}
    return {**places, "fallback": args.fallback, **({"engine": args.engine} if args.engine else {})}
