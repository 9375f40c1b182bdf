"""Runs of ONNX Runtime that end in the middle once their job is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backend.engines import Emit

_LOOK_S = 0.05


@contextmanager
def terminated_on_cancel(onnxruntime: Any, emit: Emit) -> Iterator[Any]:
    """Options for runs that end in the middle once the job is cancelled."""
    running, over = onnxruntime.RunOptions(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if emit("poll", {}):
                running.terminate = True
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield running
    finally:
        over.set()
        watcher.join()
