"""What the engines of the music model have in common: a job is the same whichever library computes the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.engines import Emit, RunRequest, RunResult
from backend.types import Placement

LIBRARY_BYTES = 250_000_000  # the library, NumPy and the sounds in use


@dataclass
class TuneSession:
    """A loaded model: any `Decoder` of `backend.music`, and the table that keeps it from copying."""

    decoder: Any
    guard: Any
    placement: Placement
    threads: int | None
    versions: dict[str, str]

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Composes, renders, hands the files over."""
        from backend.music.making import Order, make

        order = Order(request.options, request.seed, Path(request.folder), request.preface)
        made = make(self.decoder, self.guard, order, emit)
        reason = "stop" if made.complete else "cancelled"
        return RunResult(made.counts, reason, None, made.audio_s, made.phases, made.chosen)


def folder_bytes(model_path: str) -> int:
    """Bytes of the files of a model folder."""
    return sum(file.stat().st_size for file in Path(model_path).iterdir() if file.is_file())
