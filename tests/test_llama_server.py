"""llama.cpp on a card: its server program as a child, with a fake program; load log, errors and exit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from backend.common.data_dir import scratch_home
from backend.common.errors import (
    ContextLengthExceeded,
    DeviceWrong,
    ModelIncompatible,
    ModelLoadFailed,
    OutOfMemory,
    UnsupportedParameter,
)
from backend.engines import LoadRequest, RunRequest, RunResult
from backend.engines._llama import server_process
from backend.engines.llama_cpp import ENGINE, LlamaSession, load
from backend.tasks.options import parse_options
from tests.faulty_stacks.environments import PACKAGES
from tests.service import ROOT, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the package is for Linux")
TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
DEVICE = "vulkan:0"
SIGNATURES = Path(__file__).parent / "faulty_stacks" / "signatures"
Open = Callable[..., LlamaSession]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Loads the model in the stand-in, with what goes wrong there. Its folder has a short path, for sockets."""
    home = Path(tempfile.mkdtemp(prefix="llama-", dir=scratch_home()))
    sessions: list[LlamaSession] = []
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.setattr(server_process, "check", dict)

    def load_it(check_bytes: int = 0, context: int = 64, **plan: Any) -> LlamaSession:
        monkeypatch.setenv("PLAN", json.dumps(plan))
        scratch = home / str(len(list(home.iterdir())))
        scratch.mkdir()
        request = LoadRequest(DEVICE, str(TINY), context, 2, 2, str(scratch), check_bytes=check_bytes)
        sessions.append(load(request))
        return sessions[-1]

    yield load_it
    for session in sessions:
        session._server.close()
        session._chat.close()
    shutil.rmtree(home)


def run(session: LlamaSession, stop_at: int | None = None, **options: Any) -> tuple[str, RunResult]:
    texts: list[str] = []

    def emit(event: str, data: Mapping[str, Any]) -> bool:
        texts.extend([data["text"]] if event == "token" else [])
        return len(texts) == stop_at

    result = session.run(RunRequest(None, "Hello", parse_options("text", options), 1, False), emit)
    return "".join(texts), result


def test_the_engine_runs_on_the_card_in_its_runtime() -> None:
    assert {"cpu", "vulkan"} <= set(ENGINE.backends) and {"base", "llama-vulkan"} <= set(ENGINE.runtimes)


def test_the_evidence_is_the_log_of_loading(opened: Open) -> None:
    placement = opened().placement
    shares = {part.where: round(part.share_of_nodes or 0, 2) for part in placement.parts}
    assert shares == {"cpu": 0.24, DEVICE: 0.76}
    assert round(placement.on_device or 0, 2) == 0.76
    assert "CPU_Mapped 28.69 MiB, Vulkan0 92.10 MiB; offloaded 31/31 layers to GPU. Its next" in placement.evidence


@pytest.mark.parametrize("spoil", [None, "rounded"])
def test_a_card_that_computes_as_the_processor_is_loaded(opened: Open, spoil: str | None) -> None:
    evidence = opened(check_bytes=10**9, context=900, spoil=spoil).placement.evidence
    assert "Over 18 tokens its log probabilities were within 0" in evidence


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        ("halved", "after the short prompt, .*not the processor's"),
        ("long", "after the long prompt, .*not the processor's"),
        ("late", "after the short prompt and 5 further tokens|one by one"),
        ("nan", "not finite. They are NaN or infinite"),
    ],
)
def test_a_card_that_computes_wrongly_fails_the_load(opened: Open, spoil: str, where: str) -> None:
    with pytest.raises(DeviceWrong, match=where):
        opened(check_bytes=10**9, context=900, spoil=spoil)


def test_a_server_without_probabilities_is_loaded_without_the_comparison(opened: Open) -> None:
    evidence = opened(check_bytes=10**9, refuses={"message": "n_probs is not supported"}).placement.evidence
    assert "not compared with the processor's: llama.cpp answered: n_probs is not supported." in evidence


def test_the_program_has_every_flag_that_is_passed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags of the real program are in `signatures/llama-server.txt`, as its `--help` lists them."""
    real = set((SIGNATURES / "llama-server.txt").read_text(encoding="utf-8").split())
    passed: list[str] = []
    start = server_process.LlamaServer.__init__

    def note(server: Any, scratch: Path, arguments: list[str]) -> None:
        passed.extend(flag for flag in arguments if flag.startswith("--"))
        start(server, scratch, arguments)

    monkeypatch.setattr(server_process.LlamaServer, "__init__", note)
    opened(check_bytes=10**9)
    assert {"--no-op-offload", "--no-kv-offload", "--device"} <= set(passed) <= real


def test_what_stayed_on_the_processor_is_not_called_the_card(opened: Open) -> None:
    assert opened(buffers={"CPU_Mapped": 120.0}).placement.on_device == 0


def test_text_comes_as_from_the_library(opened: Open) -> None:
    text, result = run(opened())
    assert (text, result.finish_reason) == ("0 1 2 3 4 ", "length")
    assert result.counts == {"prompt_tokens": 3, "tokens": 5, "cached_tokens": 0}


def test_a_cancel_ends_it_and_the_next_job_runs(opened: Open) -> None:
    session = opened(tokens=1000)
    text, result = run(session, stop_at=3)
    assert (text, result.finish_reason) == ("0 1 2 ", "cancelled")
    assert run(session, max_tokens=5)[1].counts["tokens"] == 1000


def test_nobody_without_the_key_is_answered(opened: Open) -> None:
    session = opened()
    session._server._key = "guessed"
    with pytest.raises(ModelIncompatible, match="Invalid API Key"):
        run(session)


def test_a_prompt_that_does_not_fit_is_said_with_both_counts(opened: Open) -> None:
    refusal = {"type": "exceed_context_size_error", "n_prompt_tokens": 99, "n_ctx": 64}
    with pytest.raises(ContextLengthExceeded, match="has 99 tokens and the context holds 64"):
        run(opened(refuses=refusal))


def test_a_schema_is_refused_where_nothing_holds_to_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    session = opened()
    with pytest.raises(UnsupportedParameter, match="for this device does not support schemas"):
        run(session, response_format={"type": "json_object"})


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("error loading model: unknown model architecture: 'x'", ModelIncompatible),
        ("ggml_vulkan: Device memory allocation of size 1 failed. ErrorOutOfDeviceMemory", OutOfMemory),
        ("ggml_vulkan: device Vulkan0 does not support 16-bit storage.", ModelIncompatible),
        ("error while handling argument --device: invalid device: Vulkan0", ModelLoadFailed),
    ],
)
def test_a_program_that_does_not_start_says_why(opened: Open, said: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        opened(fails=said)


def test_a_program_that_dies_is_named_with_its_last_words(opened: Open) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)server exited \(1\).*ErrorDeviceLost"):
        run(opened(dies_at=2))


def test_the_program_is_gone_when_its_worker_is_killed(tmp_path: Path) -> None:
    flags = ["model", "ctx-size", "parallel", "batch-size", "ubatch-size", "threads", "device"]
    code = f"""
import sys, threading
sys.path[:0] = [{str(ROOT)!r}, {str(PACKAGES)!r}]
from pathlib import Path
from backend.engines._llama.server_process import LlamaServer
arguments = [word for flag in {flags!r} for word in ("--" + flag, "1")]
print(LlamaServer(Path({str(tmp_path)!r}), arguments)._process.pid, flush=True)
threading.Event().wait()
"""
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout
        program = Path(f"/proc/{worker.stdout.readline().strip()}")
        assert "llama-server" in (program / "cmdline").read_text()
        worker.kill()
    wait_for(lambda: not program.exists() or "Z" in (program / "stat").read_text().rpartition(")")[2])
