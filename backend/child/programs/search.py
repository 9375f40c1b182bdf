"""Search Hugging Face: `child search`, with the fields of a SearchOrder as one line of JSON on stdin.

It writes the lines of `one_shot.py`; the last one is `{ok, results}` or an error. The words are not on the command
line, which other users can read.
"""

from __future__ import annotations

import json
import os
import threading

from backend.child.download.errors import Refused
from backend.child.download.hub_search import SearchOrder, search_hub
from backend.child.programs.download import end_with_stdin, read_order_line
from backend.child.progress_report import ProgressReport


def main(_: list[str]) -> int:
    """Run the program and return its exit code."""
    report = ProgressReport(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    order = SearchOrder(**json.loads(read_order_line()))
    threading.Thread(target=end_with_stdin, daemon=True).start()
    try:
        result = search_hub(order, report)
    except Refused as refused:
        report.send({"error": {"code": refused.code, "detail": refused.detail, "remedy": refused.remedy}})
        return 1
    report.send({"ok": True, **result})
    return 0
