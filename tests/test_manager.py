"""The manager as a Python program uses it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backend.common import errors
from backend.common.config.settings import load_settings
from backend.manager import ModelManager
from tests.service import ROOT, wait_for

TINY = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"


def test_the_readme_s_example_runs(data_dir: Path) -> None:
    """Run the Python example of docs/api.md."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    environ = {"TOUCHSTONE_DATA_DIR": str(data_dir), "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", blocks[0]], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    text, used = ran.stdout.strip().rsplit("\n", 1)
    assert text and used == "ran on cpu"


def test_one_owner_from_detecting_to_unloading(data_dir: Path) -> None:
    with ModelManager(load_settings({"storage.data_dir": str(data_dir)}, {})) as manager:
        assert [device.id for device in manager.detect() if device.state == "ready"] == ["cpu"]
        loaded = manager.load_model("smollm2-135m-instruct", "cpu")
        assert loaded.receipt and loaded.receipt.used == "cpu" and loaded.receipt.worker_pid
        messages = [{"role": "user", "content": "Say hello."}]
        job = manager.generate(messages, {"max_tokens": 8, "seed": 1})
        assert (
            job.status == "done"
            and job.output.text
            and job.receipt
            and job.receipt.worker_pid == loaded.receipt.worker_pid
        )
        again = manager.generate("Say hello.", {"max_tokens": 8, "seed": 1})
        assert again.output.text == job.output.text, "a prompt is one message of a user"
        gone = manager.unload_model()
        assert gone and gone.receipt and gone.receipt.memory.before_bytes and gone.receipt.memory.after_bytes == 0
        assert not Path(f"/proc/{job.receipt.worker_pid}").exists()
        assert manager.unload_model() is None


def test_a_file_by_its_path(data_dir: Path) -> None:
    with ModelManager(load_settings({"storage.data_dir": str(data_dir)}, {})) as manager:
        manager.load_model(TINY, "cpu")
        job = manager.generate("abc", {"max_tokens": 4})
        assert job.receipt and job.receipt.model_file == TINY.name and job.receipt.chat_template is None


def test_those_who_ask_for_the_same_at_once_get_one_job(data_dir: Path) -> None:
    with ModelManager(load_settings({"storage.data_dir": str(data_dir)}, {})) as manager:
        source, model = "http://127.0.0.1:9/stone.gguf", "smollm2-135m-instruct"

        async def ask() -> set[str]:
            adding = (manager.model_jobs.add(source, None, None, "test") for _ in range(2))
            converting = (manager.model_jobs.convert(model, "onnx-int8", "test") for _ in range(2))
            jobs = await asyncio.gather(*adding, *converting)
            for job in jobs:
                job.cancelling.set()
            await asyncio.gather(*(job.ended.wait() for job in jobs))
            return {job.id for job in jobs}

        assert len(manager._call(ask)) == 2


def test_refusals_are_exceptions_with_a_remedy(data_dir: Path) -> None:
    with ModelManager(load_settings({"storage.data_dir": str(data_dir)}, {})) as manager:
        for settings, kind in (
            ({"device": "cuda:0", "fallback": "never"}, errors.DeviceNotReady),
            ({"device": "nothing"}, errors.UnknownDevice),
            ({"model": "nothing"}, errors.UnknownModel),
            ({"max_tokns": 3}, errors.Validation),
        ):
            with pytest.raises(kind) as caught:
                manager.generate("Hi", settings)
            assert caught.value.remedy


def test_several_threads_share_a_manager_from_their_first_call_to_its_end(data_dir: Path) -> None:
    manager = ModelManager(load_settings({"storage.data_dir": str(data_dir), "text.slots": 1}, {}))
    together = threading.Barrier(4)

    def first(_: int) -> list[str]:
        together.wait()
        return [device.id for device in manager.devices()]

    with ThreadPoolExecutor(4) as pool:
        try:
            assert list(pool.map(first, range(4))) == [["cpu"]] * 4
            jobs = [pool.submit(manager.generate, "Tell a story.", {"max_tokens": 2000}) for _ in range(3)]
            wait_for(lambda: manager.registry.count("running") == 1 and manager.registry.count("queued") == 2)
        finally:
            manager.close()
        for job in jobs:
            assert isinstance(job.exception(10), errors.Interrupted)


def test_a_held_folder_is_refused(data_dir: Path) -> None:
    settings = load_settings({"storage.data_dir": str(data_dir)}, {})
    with ModelManager(settings) as first:
        first.devices()
        with pytest.raises(errors.Configuration, match="in use by process"):
            ModelManager(settings).devices()
