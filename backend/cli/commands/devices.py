"""List the devices: which work, and what the others lack."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from backend.common.config.settings import load_settings
from backend.server.log_format import escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A table for people, or JSON."""
    parser.add_argument("--json", action="store_true", help="the answer of GET /api/devices")


def run(args: argparse.Namespace) -> int:
    """Waits for the proofs and prints."""
    from backend.cli.client import devices

    found = asyncio.run(devices(load_settings({"config": args.config})))
    print(json.dumps(found, indent=2) if args.json else table(found))
    return 0


def table(found: dict[str, Any]) -> str:
    """The devices in words: the ready ones, what lacks the others, and the hardware behind them."""
    ready = [device for device in found["devices"] if device["state"] == "ready"]
    rest = [device for device in found["devices"] if device["state"] != "ready"]
    lines = [f"Available devices ({len(ready)}):", *(f"  {device['id']}: {device['name']}" for device in ready)]
    if found["default"]:
        lines += ["", f"auto is {found['default']}. {found['default_reason']}"]
    if rest:
        lines += ["", f"Not available ({len(rest)}):"]
        for device in rest:
            layer = f", {device['layer']}" if device["layer"] else ""
            lines.append(f"  {device['id']}: {device['state']}{layer}: {device['reason'] or 'no reason was given'}")
            lines += [f"      {device['remedy']}"] if device["remedy"] else []
    if found["hardware"]:
        lines += ["", f"Hardware ({len(found['hardware'])}):"]
        for item in found["hardware"]:
            lines.append(
                f"  {item['id']}: {item['name']} ({item['kind']}): {', '.join(item['devices']) or 'no way in'}"
            )
            lines += [f"      {words}" for words in (*item["hidden_by"], item["reason"], item["remedy"]) if words]
    return "\n".join(escaped(line) for line in lines)
