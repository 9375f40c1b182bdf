"""Say what works here, what does not and what to do about it, on a page that can be pasted anywhere.

Exit codes: 0 a GPU or NPU works and nothing is broken; 3 only the CPU works; 1 nothing works, or something is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from backend.common.config.settings import Settings, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A page for people, or JSON, or both with the log and the last jobs in one file."""
    parser.add_argument("--json", action="store_true", help="the same as data")
    parser.add_argument(
        "--bundle", metavar="FILE.zip", type=Path, help="write the page, the last jobs and the log's end to one file"
    )


def run(args: argparse.Namespace) -> int:
    """Looks, prints, and returns the verdict's exit code."""
    from backend.cli.doctor.text_page import page

    settings = load_settings({"config": args.config})
    document = asyncio.run(_examined(settings))
    print(json.dumps(document, indent=2) if args.json else page(document))
    if args.bundle:
        from backend.cli.doctor import bundle
        from backend.cli.doctor.report import discreet

        names = bundle.write(args.bundle, document, settings, discreet(settings))
        print(f"{args.bundle} holds {', '.join(names)}; nothing was sent anywhere.", file=sys.stderr)
    return int(document["verdict"]["exit_code"])


async def _examined(settings: Settings) -> dict[str, Any]:
    from backend.cli.doctor.collector import gather
    from backend.cli.doctor.findings import examine
    from backend.cli.doctor.report import report

    facts, more = await gather(settings)
    return report(facts, examine(facts), more, settings)
