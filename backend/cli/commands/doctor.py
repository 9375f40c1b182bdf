"""Report what works on this machine, what does not and how to fix it, without secrets.

Exit codes: 0 a GPU or NPU works without faults; 3 only the CPU works; 1 no device works, or something is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from backend.cli.commands._settings import settings_from
from backend.common.types import JsonObject

if TYPE_CHECKING:
    from backend.common.config.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output formats and the question."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--missing",
        metavar="CARD",
        nargs="?",
        const="",
        help="show only why each card, or the named card, has no ready device",
    )
    parser.add_argument(
        "--bundle", metavar="FILE.zip", type=Path, help="also write the report, the last jobs and the end of the log"
    )


def run(args: argparse.Namespace) -> int:
    """Examine, print, and return the verdict's exit code."""
    from backend.cli.doctor.text_page import missing_page, page

    settings = settings_from(args)
    document = asyncio.run(_examine(settings, args.missing))
    text = page if args.missing is None else missing_page
    print(json.dumps(document, indent=2) if args.json else text(document))
    if args.bundle:
        from backend.cli.doctor import bundle
        from backend.cli.doctor.report import secret_redactor

        names = bundle.write(args.bundle, document, settings, secret_redactor(settings))
        print(f"{args.bundle} holds {', '.join(names)}; it was not sent anywhere.", file=sys.stderr)
    return int(document["verdict"]["exit_code"])


async def _examine(settings: Settings, wanted: str | None) -> JsonObject:
    from backend.cli.doctor.collector import gather
    from backend.cli.doctor.findings import examine
    from backend.cli.doctor.report import report

    facts, more = await gather(settings, wanted)
    return report(facts, examine(facts), more, settings)
