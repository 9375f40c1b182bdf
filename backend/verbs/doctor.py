"""Say what works here and what to do about the rest, on one page that can be pasted anywhere."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from backend import __version__
from backend.machine import memory_bytes, usable_threads
from backend.settings import Settings, load_settings

ONLY_CPU = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A page for people, or JSON."""
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """0 if more than the CPU works, 3 if the CPU alone does, 1 if nothing does."""
    report = asyncio.run(_examined(load_settings({"config": args.config})))
    print(json.dumps(report, indent=2) if args.json else _page(report))
    ready = [device["kind"] for device in report["devices"] if device["state"] == "ready"]
    return 1 if not ready else 0 if any(kind not in ("cpu", "emulated") for kind in ready) else ONLY_CPU


async def _examined(settings: Settings) -> dict[str, Any]:
    from backend.catalogue import Catalogue
    from backend.client import connect

    async with connect(settings) as client:
        found = await client.devices()
    catalogue = Catalogue(settings)
    free = shutil.disk_usage(settings.data_dir).free
    return {
        "touchstone": __version__,
        "system": platform.platform(),
        "python": f"{platform.python_version()} at {_short(sys.executable)}",
        "threads": usable_threads(),
        "memory_bytes": memory_bytes(),
        "data_dir": _short(str(settings.data_dir)),
        "disk_free_bytes": free,
        "devices": found["devices"],
        "models": [
            {"id": model.id, "state": model.state, "reason": model.reason, "remedy": model.remedy}
            for model in catalogue.models()
        ],
        "notices": [
            {"file": _short(file), "detail": detail, "remedy": remedy} for file, detail, remedy in catalogue.notices()
        ],
    }


def _page(report: dict[str, Any]) -> str:
    memory = f"{report['memory_bytes'] / 1e9:.1f} GB" if report["memory_bytes"] else "unknown"
    lines = [
        f"Touchstone {report['touchstone']} on {report['system']}",
        f"Python {report['python']}; {report['threads']} threads; memory {memory}",
        f"Data in {report['data_dir']}, {report['disk_free_bytes'] / 1e9:.1f} GB free",
        "",
        "Devices",
    ]
    for device in report["devices"]:
        lines.append(f"  {device['id']}: {device['state']} ({device['name']})")
        if proof := device["proof"]:
            lines.append(
                f"      proved by {proof['operation']} {proof['dtype']}, largest error {proof['max_abs_error']:g}"
            )
        lines += [f"      {device[key]}" for key in ("reason", "remedy") if device[key]]
    lines += ["", "Models"]
    for model in report["models"]:
        lines.append(f"  {model['id']}: {model['state']}")
        lines += [f"      {model[key]}" for key in ("reason", "remedy") if model[key]]
    for notice in report["notices"]:
        lines += [f"  {notice['file']}: {notice['detail']}", f"      {notice['remedy']}"]
    return "\n".join(lines)


def _short(path: str) -> str:
    """A path with the home folder as ~, so that the page names nobody."""
    home = str(Path.home())
    return "~" + path[len(home) :] if path == home or path.startswith(home + os.sep) else path
