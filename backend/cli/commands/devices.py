"""List the devices: those that work, and why the others do not."""

from __future__ import annotations

import argparse
import asyncio
import json

from backend.cli.commands._settings import settings_from
from backend.common.types import JsonObject


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output format."""
    parser.add_argument("--json", action="store_true", help="print the answer of GET /api/devices")


def run(args: argparse.Namespace) -> int:
    """Wait until every device is probed and print the list."""
    from backend.cli.client import devices

    listing = asyncio.run(devices(settings_from(args)))
    print(json.dumps(listing, indent=2) if args.json else table(listing))
    return 0


def table(listing: JsonObject) -> str:
    """Return the text for a terminal: ready devices, the others with reason and remedy, and the hardware."""
    from backend.common.clean_text import escape

    ready = [device for device in listing["devices"] if device["state"] == "ready"]
    others = [device for device in listing["devices"] if device["state"] != "ready"]
    lines = [f"Available devices ({len(ready)}):", *(f"  {device['id']}: {device['name']}" for device in ready)]
    if listing["default"]:
        lines += ["", f"auto is {listing['default']}. {listing['default_reason']}"]
    if others:
        lines += ["", f"Not available ({len(others)}):"]
        for device in others:
            layer = f", {device['layer']}" if device["layer"] else ""
            lines.append(f"  {device['id']}: {device['state']}{layer}: {device['reason'] or 'no reason was given'}")
            lines += [f"      {device['remedy']}"] if device["remedy"] else []
    if listing["hardware"]:
        lines += ["", f"Hardware ({len(listing['hardware'])}):"]
        for item in listing["hardware"]:
            reached_by = ", ".join(item["devices"]) or "no device reaches it"
            lines.append(f"  {item['id']}: {item['name']} ({item['kind']}): {reached_by}")
            notes = (*item["hidden_by"], item["reason"], item["remedy"])
            lines += [f"      {note}" for note in notes if note]
    return "\n".join(escape(line) for line in lines)
