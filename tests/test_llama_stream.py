"""llama.cpp's stream as events: progress of the prefill at intervals, and a cancel at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.engines._llama.stream import PROGRESS_GAP_S, Stream


def progress(done: int) -> dict[str, Any]:
    return {"prompt_progress": {"processed": done, "total": 4000}}


def test_how_far_the_prompt_is_read_is_told_only_so_often() -> None:
    now, told = [100.0], list[tuple[str, int | None]]()

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        told.append((event, data.get("done")))
        return False

    stream = Stream(emit, None, None, lambda: now[0])
    for number in range(1, 8):
        now[0] += PROGRESS_GAP_S * 0.6
        assert stream(progress(number)) is False
    wakes = [("progress", 1), ("poll", None), ("progress", 3), ("poll", None), ("progress", 5), ("poll", None)]
    assert told == [*wakes, ("progress", 7)]


def test_a_cancel_is_heard_also_where_nothing_is_told() -> None:
    stream = Stream(lambda event, data: True, None, None, lambda: 100.0)
    assert stream(progress(1)) is True
