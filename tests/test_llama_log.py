"""llama.cpp writes its log from another thread: the load waits for the line, up to a timeout."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.common.errors import ModelIncompatible
from backend.engines import LoadRequest
from backend.engines.llama_cpp import LlamaSession, load

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
LATE_S = 0.3
SIZES = (
    "load_tensors:   CPU_Mapped model buffer size =    10.00 MiB\nload_tensors: CUDA0 model buffer size =  30.00 MiB\n"
)


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, server: Callable[[Any], object]) -> LlamaSession:
    """Loads with a library whose server is the test's."""

    class Anything:
        def __getattr__(self, name: str) -> Anything:
            self.__dict__[name] = Anything()
            return self.__dict__[name]  # type: ignore[no-any-return]

    library = types.ModuleType("xllamacpp")
    library.__dict__.update(
        CommonParams=Anything,
        Server=server,
        common_reasoning_format=Anything(),
        get_device_info=lambda: [{"name": "CPU"}],
        __version__="0",
    )
    monkeypatch.setitem(sys.modules, "xllamacpp", library)
    return load(LoadRequest(device="cpu", model_path=str(TINY), context_tokens=64, threads=1, scratch=str(folder)))


def writes_late(*texts: str) -> None:
    """Writes to fd 2 from another thread, after the constructor has returned."""
    pause = threading.Event()

    def write() -> None:
        for text in texts:
            pause.wait(LATE_S)
            os.write(2, text.encode())

    threading.Thread(target=write, daemon=True).start()


def test_the_placement_is_read_when_the_log_is_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = SIZES.splitlines(keepends=True)
    session = play(
        monkeypatch, tmp_path, lambda _: writes_late(first, second, "srv init: listening on unix:///x/s.sock\n")
    )
    assert [(part.where, part.share_of_nodes) for part in session.placement.parts] == [("cpu", 0.25), ("CUDA0", 0.75)]


def test_the_reason_of_a_failure_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(_: Any) -> None:
        writes_late("llama_model_load: error loading model: unknown model architecture: 'x'\n")
        raise RuntimeError("failed to init server")

    with pytest.raises(ModelIncompatible, match="unknown model architecture"):
        play(monkeypatch, tmp_path, fails)


def test_a_log_that_says_nothing_ends_the_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = play(monkeypatch, tmp_path, lambda _: None)
    assert session.placement.parts == [] and "unknown" in session.placement.evidence
