"""ModelManager, the one owner of devices, models, workers and jobs. One per process.

The service awaits the methods of its `core.py` half on its own event loop. Python programs use the synchronous methods
here, which run the same object on a loop in a thread of its own:

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
from backend.common.types import Device, Job
from backend.jobs.live_job import LiveJob
from backend.jobs.request import GenerateRequest, parse_request
from backend.manager import model_jobs
from backend.manager.core import Core

Result = TypeVar("Result")
CALLER = "python"
CLOSING_S = 1.0


class ModelManager(Core):
    """Owns everything. The synchronous methods are not for a manager that an event loop has started."""

    _starting = threading.Lock()  # for the first calls of several threads
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread
    _chosen: tuple[str, str] | None = None

    def detect(self) -> list[Device]:
        """Probes all devices and returns them when all are known."""
        if self._loop is not None:  # the start, which the first call brings about, probes by itself
            self._call(lambda: self.probes.probe())
        return self.devices()

    def devices(self) -> list[Device]:
        """All devices, once nothing is being probed."""
        self._call(lambda: self.probes.wait_until_idle())
        return self.known_devices()

    def load_model(self, id_or_path: str | Path, device: str = "auto") -> Job:
        """Loads a model (id, or path of a file) and makes it and the device the ones that `generate` uses.

        Raises the TouchstoneError that the load ended with.
        """
        model = self.catalogue.resolve(str(id_or_path), anywhere=True).id
        job = self._call(lambda: _finished(self, model_jobs.load(self, model, device, None, CALLER)))
        self._chosen = (model, device)
        return job

    def generate(
        self, messages: str | Sequence[Mapping[str, str]] | None, settings: Mapping[str, Any] | None = None
    ) -> Job:
        """Generates and returns the finished Job. `settings` takes the keys of a request and of its options.

        `messages` may be one text, and None where the task needs no words (`{"task": "music", "form": "jig"}`).
        Raises the TouchstoneError that the job ended with.
        """
        rest = dict(settings or {})
        body: dict[str, Any] = {name: rest.pop(name) for name in list(rest) if name in GenerateRequest.model_fields}
        if self._chosen:
            body = {"model": self._chosen[0], "device": self._chosen[1], **body}
        if isinstance(messages, str):
            body["prompt"] = messages
        elif messages is not None:
            body["messages"] = list(messages)
        body["options"] = {**body.get("options", {}), **rest}
        request = parse_request(body)
        return self._call(lambda: _finished(self, self.submit(request, CALLER)))

    def add_file(self, path: str | Path) -> str:
        """Keeps a copy of a file for jobs that take files; gives its id for `generate(None, {"inputs": {NAME: id}})`.

        Raises OSError for a file that cannot be read, Validation, PayloadTooLarge, DiskFull.
        """
        return self._call(lambda: self.uploads.import_file(Path(path))).id

    def unload_model(self) -> Job | None:
        """Unloads the model that `load_model` loaded; the Job's receipt has the memory before and after."""
        if self._chosen is None:
            return None
        model, self._chosen = self._chosen[0], None
        return self._call(lambda: _finished(self, model_jobs.unload(self, model, CALLER)))

    def close(self) -> None:
        """Ends all children and gives the data folder back."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop:
            try:
                asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                self._thread.join()
                loop.close()

    def __enter__(self) -> ModelManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Runs `work()` on the manager's own loop, which the first call starts."""
        with self._starting:
            loop = self._loop = self._loop or self._started()

        async def called() -> Result:
            return await work()

        return asyncio.run_coroutine_threadsafe(called(), loop).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="manager", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.start(), loop).result()
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
            raise
        return loop

    async def _end(self) -> None:
        """Stops, and lets the calls of other threads see it: whoever waits on a loop that has ended waits for ever."""
        await self.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, waiting = await asyncio.wait(others, timeout=CLOSING_S)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)


async def _finished(manager: ModelManager, accepting: Coroutine[Any, Any, LiveJob | str]) -> Job:
    """Waits for the end of a job; raises what it ended with."""
    job = await accepting
    assert isinstance(job, LiveJob), "only a request with an Idempotency-Key gives an id"
    await job.ended.wait()
    if job.error:
        raise errors.from_code(job.error.code, job.error.detail, job.error.remedy)
    if job.active:
        raise errors.Interrupted("The manager was closed while the job was waiting.", "The next one runs it.")
    return TypeAdapter(Job).validate_python(job.view())
