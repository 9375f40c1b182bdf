"""The registry of job handlers, and log lines with the id of the job."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, get_args

import pytest

from backend.common.config.settings import load_settings
from backend.common.config.settings.schema import Task
from backend.common.types import MAINTENANCE
from backend.jobs.generate_request import parse_request
from backend.jobs.live_job import LiveJob, new_row
from backend.jobs.store.sqlite import JobStore
from backend.manager.core import Core
from tests.faulty import faulty

GGUF = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"


def make_core(folder: Path) -> Core:
    """Return a manager with one model, whose children do what they should."""
    config = folder / "config.yaml"
    config.write_text(f"models: {{tiny: {{path: '{GGUF}'}}}}\ndefault_models: {{text: tiny}}\n")
    return Core(load_settings({"config": str(config), "storage.data_dir": str(folder / "data")}, {}), faulty("ok"))


def test_each_task_has_one_handler(tmp_path: Path) -> None:
    handlers = make_core(tmp_path)._dispatcher.handlers
    assert set(handlers) == {*get_args(Task), *MAINTENANCE}


def restarted(folder: Path, **row: Any) -> dict[str, Any]:
    """Return the Job of a queued row that an earlier server left, after a start of this version."""

    async def play() -> dict[str, Any]:
        (folder / "data").mkdir()
        store = JobStore(folder / "data" / "jobs.sqlite3")
        await store.open()
        stored = new_row("text", "tiny", {}, "test") | row
        await store.add(stored, [])
        await store.close()
        core = make_core(folder)
        await core.start()
        try:
            async with asyncio.timeout(10):
                while (view := await core.registry.view(stored["id"]))["status"] == "queued":
                    await asyncio.sleep(0.01)
            return view
        finally:
            await core.stop()

    return asyncio.run(play())


def test_a_stored_job_without_a_handler_fails_with_the_tasks_of_this_version(tmp_path: Path) -> None:
    view = restarted(tmp_path, task="paint")
    assert view["status"] == "error" and view["error"]["code"] == "validation_error"
    assert "no handler for jobs of the task 'paint'" in view["error"]["detail"]
    assert "bench" in view["error"]["remedy"]


def test_a_stored_job_whose_model_is_gone_fails(tmp_path: Path) -> None:
    view = restarted(tmp_path, task="unload", model="gone")
    assert view["status"] == "error" and view["error"]["code"] == "unknown_model"


def test_one_job_can_be_followed_by_its_id_through_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "backend")

    async def play() -> tuple[LiveJob, LiveJob]:
        core = make_core(tmp_path)
        await core.start()
        try:
            await core.probes.wait_until_idle()
            asked = parse_request({"prompt": "a secret wish", "device": "vulkan:0"})
            job = await core.submit(asked, "test")
            assert isinstance(job, LiveJob)
            await job.ended.wait()
            download = await core.model_jobs.add("tiny", None, None, "test")
            await download.ended.wait()
            await asyncio.sleep(0)
            return job, download
        finally:
            await core.stop()

    job, download = asyncio.run(play())
    assert (job.status, download.status) == ("done", "done")
    records = [record for record in caplog.records if getattr(record, "job", None) == job.id]
    messages = [record.getMessage() for record in records]
    assert messages[0] == "job accepted" and messages[-1] == "job ended" and "fallback" in messages
    fields = {name: getattr(records[0], name) for name in ("task", "model", "device")}
    assert fields == {"task": "text", "model": "tiny", "device": "vulkan:0"}
    assert (vars(records[-1])["status"], vars(records[-1])["device"]) == ("done", "cpu")
    others = [record.getMessage() for record in caplog.records if getattr(record, "job", None) == download.id]
    assert others[0] == "job accepted" and others[-1] == "job ended"
    assert "a secret wish" not in caplog.text
