"""A loaded model that makes songs, whichever library computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.types import Placement
from backend.engines import Emit, RunRequest, RunResult


@dataclass
class SongSession:
    """Any `Composer` of `backend.tasks.songs.job`."""

    composer: Any
    placement: Placement
    threads: int | None
    versions: dict[str, str]
    device_bytes: Callable[[], int | None]

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Makes the songs and hands their files over."""
        from backend.tasks.songs.job import Order, make_songs

        order = Order(
            request.prompt,
            request.options,
            request.seed,
            Path(request.folder),
            request.variations(),
            request.model,
            request.licence,
            request.inputs,
        )
        made = make_songs(self.composer, order, emit)
        return RunResult(made.counts, made.finish_reason, None, made.audio_s, made.phases, made.chosen)
