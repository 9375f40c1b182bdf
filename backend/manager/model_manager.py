"""ModelManager, the one owner of devices, models, workers and jobs. Make one per process.

The service awaits the methods of `core.py` on its own event loop. Python programs use the synchronous methods here,
which run the same object on an event loop in a thread:

from backend.manager import ModelManager

with ModelManager() as manager:
    manager.load_model("smollm2-135m-instruct", "cpu")
    job = manager.generate([{"role": "user", "content": "Say hello."}], {"max_tokens": 16})
    print(job.output.text, job.receipt.used)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from backend.common import errors
from backend.common.types import Device, Job, JsonObject
from backend.jobs.generate_request import GenerateRequest, parse_request
from backend.jobs.live_job import LiveJob
from backend.manager.core import Core

Result = TypeVar("Result")
CALLER = "python"
CLOSE_TIMEOUT_S = 1.0


class ModelManager(Core):
    """Owns everything. Do not call the synchronous methods on a manager that an event loop has started."""

    _starting = threading.Lock()  # threads may make their first calls at once
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread
    _loaded: tuple[str, str] | None = None  # model and device of the last `load_model`

    def detect(self) -> list[Device]:
        """Probe all devices and return them."""
        if self._loop is not None:  # the first call starts the manager, which probes anyway
            self._call(lambda: self.probes.probe())
        return self.devices()

    def devices(self) -> list[Device]:
        """Return all devices, after waiting until none is being probed."""
        self._call(lambda: self.probes.wait_until_idle())
        return self.directory.known_devices()

    def load_model(self, id_or_path: str | Path, device: str = "auto") -> Job:
        """Load a model by its id or the path of a file. It becomes the default of `generate`, with its device.

        Raises the exception (a TouchstoneError) that the job failed with, also for a load timeout.
        """
        model = self.catalogue.resolve(str(id_or_path), anywhere=True).id
        job = self._call(lambda: _wait_for_end(self.model_jobs.load(model, device, None, CALLER)))
        self._loaded = (model, device)
        return job

    def generate(
        self, messages: str | Sequence[Mapping[str, str]] | None, settings: Mapping[str, Any] | None = None
    ) -> Job:
        """Generate and return the finished Job. `settings` has the keys of a request and of its options.

        `messages` may be one prompt. They are optional for a task without text (`{"task": "music", "form": "jig"}`).
        Raises the exception (a TouchstoneError) that the job failed with.
        """
        options = dict(settings or {})
        fields = [name for name in options if name in GenerateRequest.model_fields]
        body: JsonObject = {name: options.pop(name) for name in fields}
        if self._loaded:
            body = {"model": self._loaded[0], "device": self._loaded[1], **body}
        if isinstance(messages, str):
            body["prompt"] = messages
        elif messages is not None:
            body["messages"] = list(messages)
        body["options"] = {**body.get("options", {}), **options}
        request = parse_request(body)
        return self._call(lambda: _wait_for_end(self.submit(request, CALLER)))

    def add_file(self, path: str | Path) -> str:
        """Copy a file into the data folder. Returns its id for `generate(None, {"inputs": {NAME: id}})`.

        Raises OSError for a file that cannot be read, Validation, PayloadTooLarge, DiskFull.
        """
        return self._call(lambda: self.uploads.import_file(Path(path))).id

    def unload_model(self) -> Job | None:
        """Unload the model of the last `load_model`. Returns the Job, whose receipt has the memory before and after.

        Returns None if no model was loaded.
        """
        if self._loaded is None:
            return None
        model, self._loaded = self._loaded[0], None
        return self._call(lambda: _wait_for_end(self.model_jobs.unload(model, CALLER)))

    def close(self) -> None:
        """End all child processes and release the data folder."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop:
            try:
                asyncio.run_coroutine_threadsafe(self._shut_down(), loop).result()
            finally:
                self._end_thread(loop)

    def __enter__(self) -> ModelManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run `work()` on the manager's event loop, which the first call starts. Returns its result."""
        with self._starting:
            loop = self._loop = self._loop or self._start_thread()

        async def run() -> Result:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), loop).result()

    def _start_thread(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="manager", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.start(), loop).result()
        except BaseException:
            self._end_thread(loop)
            raise
        return loop

    def _end_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    async def _shut_down(self) -> None:
        """Stop, and let the calls of other threads end: a call that waits on a closed event loop never returns."""
        await self.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, waiting = await asyncio.wait(others, timeout=CLOSE_TIMEOUT_S)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)


async def _wait_for_end(accepting: Coroutine[Any, Any, LiveJob | str]) -> Job:
    """Wait for the end of a job and return it. Raises the error that it failed with, Interrupted if it never ran."""
    job = await accepting
    assert isinstance(job, LiveJob), "only a request with an Idempotency-Key returns an id"
    await job.ended.wait()
    if job.error:
        raise errors.from_code(job.error.code, job.error.detail, job.error.remedy)
    if job.active:
        raise errors.Interrupted("The manager was closed while the job was queued.", "The next start runs it.")
    return TypeAdapter(Job).validate_python(job.view())
