"""Run options of ONNX Runtime that terminate a run once its job is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backend.engines import Emit

_POLL_S = 0.05


@contextmanager
def terminated_on_cancel(onnxruntime: Any, emit: Emit) -> Iterator[Any]:
    """Yield run options. A thread polls `emit` and terminates runs with these options once the job is cancelled."""
    options, done = onnxruntime.RunOptions(), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            if emit("poll", {}):
                options.terminate = True
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield options
    finally:
        done.set()
        watcher.join()
