"""A loaded model that generates songs, independent of the library that computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.common.types import Placement
from backend.engines import Emit, RunRequest, RunResult, Session


@dataclass
class SongSession(Session):
    """A session for any `Composer` of `backend.tasks.songs.job`. `card_bytes` returns the memory on the card."""

    composer: Any
    placement: Placement
    threads: int | None
    versions: dict[str, str]
    card_bytes: Callable[[], int | None]
    look_up: Callable[[], Placement | None] = lambda: None  # where the model is now

    def find_placement(self) -> Placement | None:
        """Return where the model is now, None if the library cannot tell."""
        return self.look_up()

    def device_bytes(self) -> int | None:
        """Return the memory that the model takes on a card now, None if unknown."""
        return self.card_bytes()

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Generate the songs and hand over their files."""
        from backend.tasks.songs.job import JobSpec, make_songs

        order = JobSpec(
            request.prompt,
            request.options,
            request.seed,
            Path(request.folder),
            request.variations(),
            request.model,
            request.licence,
            request.inputs,
        )
        result = make_songs(self.composer, order, emit)
        return RunResult(result.counts, result.finish_reason, None, result.audio_s, result.phases, result.chosen)
