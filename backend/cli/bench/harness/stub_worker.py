"""A worker with a stub engine: it emits tokens at a fixed rate, through the real child program and wire protocol.

Runs instead of `backend/child run`. Its argument is the rate of each job in tokens per second.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # under -I the package is not on the path

from backend.child.programs import run
from backend.child.wire_protocol import claim_stdio
from backend.common.types import Placement, PlacementPart
from backend.engines import Emit, LoadRequest, RunRequest, RunResult, Session

WORD = "stone "
_START_S = time.perf_counter()


class Paced(Session):
    """A stub of a loaded model."""

    def __init__(self, device: str, pace: float) -> None:
        self.threads: int | None = 0
        self.versions: dict[str, str] = {}
        self.placement = Placement(None, [PlacementPart(device, 1.0)], "A stub without computation.")
        self._gap_s = 1 / pace

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Emit the maximum number of tokens, at times that are the same for all jobs, like the steps of an engine."""
        steps = int((time.perf_counter() - _START_S) / self._gap_s) + 1
        first_s = _START_S + steps * self._gap_s
        wanted = int(request.options["max_tokens"])
        for number in range(wanted):
            time.sleep(max(0.0, first_s + number * self._gap_s - time.perf_counter()))
            if emit("token", {"text": WORD, "count": 1}):
                return RunResult({"prompt_tokens": 1, "tokens": number}, "cancelled")
        return RunResult({"prompt_tokens": 1, "tokens": wanted}, "length")


def main(pace: float) -> int:
    """Serve the parent until stdin ends."""

    def load(request: LoadRequest) -> Paced:
        return Paced(request.device, pace)

    engine: Any = SimpleNamespace(load=load)
    run.load_engine = lambda name: engine  # type: ignore[attr-defined]
    return run.main(claim_stdio())


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
