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


READY = "srv init: listening on unix:///x/s.sock\n"
ALL_ON_CPU = """load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
llama_kv_cache:        CPU KV buffer size =    22.50 MiB
sched_reserve:        CPU compute buffer size =     1.96 MiB
"""


def test_on_the_processor_nothing_may_go_to_a_card_that_the_build_reaches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A build for Macs has Metal inside, which would compute large products and hold the KV cache."""
    found: list[Any] = []

    def start(params: Any) -> None:
        found.append(params)
        sys.modules["xllamacpp"].__dict__["get_device_info"] = lambda: [{"name": "MTL0"}, {"name": "CPU"}]
        os.write(2, (ALL_ON_CPU + READY).encode())

    session = play(monkeypatch, tmp_path, start)
    assert (found[0].n_gpu_layers, found[0].no_op_offload, found[0].no_kv_offload) == (0, True, True)
    assert session.placement.on_device == 1.0
    assert session.placement.evidence.endswith(
        "the library also has MTL0, and no layer, KV cache or operation is offloaded"
    )


def test_the_real_library_has_the_parameters_that_keep_it_on_the_processor() -> None:
    params = pytest.importorskip("xllamacpp").CommonParams()
    for name in ("n_gpu_layers", "no_op_offload", "no_kv_offload"):
        assert hasattr(params, name), "a misspelled attribute would be ignored by the stand-in above"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("llama_kv_cache:       MTL0 KV buffer size =    22.50 MiB\n", "MTL0 KV 22.50 MiB"),
        ("sched_reserve:      CUDA0 compute buffer size =   120.00 MiB\n", "CUDA0 compute 120.00 MiB"),
    ],
)
def test_a_cache_or_a_computation_elsewhere_is_not_called_the_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, what: str
) -> None:
    session = play(monkeypatch, tmp_path, lambda _: os.write(2, (ALL_ON_CPU + line + READY).encode()))
    assert session.placement.on_device is None and session.placement.parts == []
    assert f"buffers outside the CPU: {what}" in session.placement.evidence


def test_memory_of_the_host_that_a_card_may_read_is_the_processor_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = ALL_ON_CPU.replace("CPU_Mapped", "CUDA_Host") + "sched_reserve:  CUDA_Host compute buffer size =  1.00 MiB\n"
    session = play(monkeypatch, tmp_path, lambda _: os.write(2, (log + READY).encode()))
    assert session.placement.on_device == 1.0
