"""Check how much of the server one job crosses: a reader who follows a request should not need many files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from backend.common.config.settings import Settings, load_settings
from backend.server.process import serve
from tests.faulty import faulty
from tests.service import ROOT

GGUF = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
BACKEND = f"{ROOT / 'backend'}{os.sep}"
FILES_LIMIT = 40
NOT_COUNTED = {
    "common/types.py",  # dataclasses, which every module uses
    "server/log_format.py",
    "common/system/oom_kills.py",  # these are read at the worker's heartbeat, whether a job runs or not
    "common/system/cgroups.py",
    "common/bounded_reads.py",  # which bounds those reads
}
RUNS = 5


class Tracer:
    """Counts the calls of `file:function` under backend/ in all threads, from `start` to `stop`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._is_counting = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Watch this thread, and the threads that start meanwhile."""
        sys.setprofile(self._note)
        threading.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """Yield the counter of the calls during the body."""
        self.calls, self._is_counting = Counter(), True
        try:
            yield self.calls
        finally:
            self._is_counting = False

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_counting and event == "call" and frame.f_code.co_filename.startswith(BACKEND):
            file = Path(frame.f_code.co_filename[len(BACKEND) :]).as_posix()
            self.calls[f"{file}:{frame.f_code.co_name}"] += 1


def settings_for(tmp_path: Path) -> Settings:
    """Return settings with one small model, a new data folder and any free port."""
    config = tmp_path / "config.yaml"
    config.write_text(f"models: {{tiny: {{path: '{GGUF}'}}}}\ndefault_models: {{text: tiny}}\n")
    return load_settings({"config": str(config), "storage.data_dir": str(tmp_path / "data"), "server.port": 0}, {})


def spawn(python: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start a stand-in for the worker, so that the test is quick."""
    return faulty("ok")(python, arguments)


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"device": "cpu"}], ids=["waiting", "streaming", "device"])
def test_a_warm_text_job_crosses_few_files(tmp_path: Path, body: dict[str, Any]) -> None:
    """Run a job to load the model, then trace jobs that use it. Each resolves its device once."""
    tracer = Tracer()

    async def play() -> list[Counter[str]]:
        lines: asyncio.Queue[str] = asyncio.Queue()
        serving = asyncio.create_task(serve(settings_for(tmp_path), lines.put_nowait, spawn=spawn))
        serving.add_done_callback(lambda _: lines.put_nowait("it ended"))
        url = (await lines.get()).split()[-1]
        if serving.done():
            serving.result()  # raises why it did not start
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            await client.get("/api/devices", params={"wait_s": 20})
            runs = []
            for _ in range(RUNS + 1):
                with tracer.counting() as calls:
                    answer = await client.post("/api/generate", json={"prompt": "Hi", **body})
                assert answer.status_code == 200, answer.text
                runs.append(calls)
        signal.raise_signal(signal.SIGTERM)
        await serving
        return runs[1:]  # the first one loads the model

    with tracer.installed():
        runs = asyncio.run(play())
    calls = min(runs, key=lambda calls: len(files(calls)))  # without what the server does now and then
    listed = "\n".join(f"{file}: {', '.join(functions(calls, file))}" for file in files(calls))
    assert calls["scheduling/device_resolution.py:resolve"] == 1, listed
    assert len(files(calls)) <= FILES_LIMIT, f"{len(files(calls))} files:\n{listed}"


def files(calls: Counter[str]) -> list[str]:
    """Return the distinct files, sorted."""
    return sorted({call.partition(":")[0] for call in calls} - NOT_COUNTED)


def functions(calls: Counter[str], file: str) -> list[str]:
    """Return the functions of a file that were called, with their number of calls."""
    return [f"{call.partition(':')[2]}×{count}" for call, count in calls.items() if call.partition(":")[0] == file]
