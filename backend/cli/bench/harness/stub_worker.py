"""A worker whose engine is none: it writes tokens at a given pace, through the real child program and its wire.

Run as a program of its own in place of `backend/child run`, with the tokens a second of each job as its argument.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # under -I nothing else names the place

from backend.child.programs import run
from backend.child.wire_protocol import claim_stdio
from backend.common.types import Placement, PlacementPart
from backend.engines import Emit, LoadRequest, RunRequest, RunResult

WORD = "stone "
_BEGAN = time.perf_counter()


class Paced:
    """A loaded model that is none."""

    threads = 0
    versions: dict[str, str] = {}
    model_file: str | None = None

    def __init__(self, device: str, pace: float) -> None:
        self.placement = Placement(None, [PlacementPart(device, 1.0)], "A stand-in that computes nothing.")
        self._gap_s = 1 / pace

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Writes as many tokens as may be, each at its moment: the same for all jobs, as an engine's steps are."""
        steps = int((time.perf_counter() - _BEGAN) / self._gap_s) + 1
        began = _BEGAN + steps * self._gap_s
        wanted = int(request.options["max_tokens"])
        for number in range(wanted):
            time.sleep(max(0.0, began + number * self._gap_s - time.perf_counter()))
            if emit("token", {"text": WORD, "count": 1}):
                return RunResult({"prompt_tokens": 1, "tokens": number}, "cancelled")
        return RunResult({"prompt_tokens": 1, "tokens": wanted}, "length")


def main(pace: float) -> int:
    """Serves the parent until stdin ends."""

    def load(request: LoadRequest) -> Paced:
        return Paced(request.device, pace)

    engine: Any = SimpleNamespace(load=load)
    run.load_engine = lambda name: engine  # type: ignore[attr-defined]
    return run.main(claim_stdio())


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
