"""A worker: one child that holds one loaded model. Unloading ends the process.

Silence, a load or a step beyond its limit counts as hung: the child is killed and the job told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass

from backend import faults, oomkills
from backend.child.wire import WIRE_VERSION, Header
from backend.children import Child, Spawn
from backend.engines import LoadRequest, RunRequest
from backend.errors import DeviceLost, OutOfMemory, TouchstoneError, WorkerCrashed, WorkerHung, from_code
from backend.types import Placement, PlacementPart


@dataclass(frozen=True)
class WorkerKey:
    """What a worker is for. Jobs with the same key can share it."""

    device: str
    runtime: str
    engine: str
    model: str


@dataclass(frozen=True)
class Limits:
    """Seconds after which a worker counts as hung, and how long a cancel may take."""

    silence_s: float
    load_s: float
    step_s: float
    cancel_s: float


@dataclass(frozen=True)
class Loaded:
    """What the child said after loading."""

    placement: Placement
    threads: int | None
    versions: dict[str, str]
    before_bytes: int | None
    resident_bytes: int | None


class Worker:
    """Starts its child at `load`; afterwards runs one job at a time."""

    def __init__(self, key: WorkerKey, python: str, limits: Limits, spawn: Spawn) -> None:
        self.key = key
        self._python = python
        self._limits = limits
        self._spawn = spawn
        self._child: Child | None = None
        self._scratch = ""
        self._kills: oomkills.Watch | None = None
        self.resident_bytes: int | None = None
        self.peak_bytes: int | None = None
        self.loaded: Loaded | None = None
        self.hung: str | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, or None before the start."""
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        """Whether a model is loaded and the child has not ended, as far as is known."""
        return self.loaded is not None

    async def load(self, model_path: str, context_tokens: int, threads: int) -> Loaded:
        """Starts the child and loads the model.

        Raises WorkerCrashed, WorkerHung, or what the engine said (ModelLoadFailed, ModelBroken, OutOfMemory …).
        """
        self._scratch = tempfile.mkdtemp(prefix="touchstone-")
        self._child = Child(self._spawn(self._python, ["run"]), asyncio.get_running_loop())
        self._kills = oomkills.watch(self._child.pid)
        request = LoadRequest(self.key.device, model_path, context_tokens, threads, self._scratch)
        try:
            async with asyncio.timeout(self._limits.load_s):
                hello = await self._next()
                if hello["op"] != "hello" or hello.get("wire") != WIRE_VERSION:
                    raise WorkerCrashed(
                        f"The child speaks wire version {hello.get('wire')}, the server {WIRE_VERSION}.",
                        "Restart the server, so that both come from the same files.",
                    )
                self._child.send({"op": "load", "engine": self.key.engine, "request": asdict(request)})
                while (frame := await self._next())["op"] != "loaded":
                    self._take(frame)
        except TimeoutError:
            self._hang(f"loading took longer than {self._limits.load_s:g} s")
            await self.close()
            raise self._hung_error() from None
        except BaseException:
            await self.close()
            raise
        shutil.rmtree(self._scratch, ignore_errors=True)  # its socket and log served the loading alone
        parts = [PlacementPart(**part) for part in frame["placement"]["parts"]]
        placement = Placement(None, parts, frame["placement"]["evidence"])
        self.loaded = Loaded(
            placement, frame["threads"], frame["versions"], frame["before_bytes"], frame["resident_bytes"]
        )
        self._note_memory(frame["resident_bytes"])
        return self.loaded

    async def run(self, job_id: str, request: RunRequest, cancelling: asyncio.Event) -> AsyncGenerator[Header, None]:
        """Runs a job and yields its frames, `done` last; setting `cancelling` ends it within a step or by a kill.

        Raises WorkerCrashed, WorkerHung, or what the engine said.
        """
        assert self._child and self.loaded
        self._child.send({"op": "run", "job": job_id, "request": asdict(request)})
        watcher = asyncio.create_task(self._watch_cancel(job_id, cancelling))
        progress_by = asyncio.get_running_loop().time() + self._limits.step_s
        try:
            while True:
                frame = await self._within_limits(progress_by)
                self._take(frame)
                if frame.get("job") != job_id:
                    continue
                progress_by = asyncio.get_running_loop().time() + self._limits.step_s
                yield frame
                if frame["op"] == "done":
                    return
        except TouchstoneError:
            raise
        except BaseException:
            await self.close()  # the caller left in the middle: the child's state is not known any more
            raise
        finally:
            watcher.cancel()

    async def close(self) -> None:
        """Ends the child, waits until it is gone and removes its scratch folder. May be called again."""
        self.loaded = None
        if self._child:
            self._child.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._child.ended()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _within_limits(self, progress_by: float) -> Header:
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(self._limits.silence_s, max(0.0, progress_by - now))):
                return await self._next()
        except TimeoutError:
            step_over = asyncio.get_running_loop().time() >= progress_by
            limit = self._limits.step_s if step_over else self._limits.silence_s
            self._hang(f"{'no step was finished' if step_over else 'it gave no sign of life'} for {limit:g} s")
            await self.close()
            raise self._hung_error() from None

    async def _next(self) -> Header:
        assert self._child
        frame = await self._child.receive()
        if frame is not None:
            return frame
        error = self._death()  # before the cleaning up, which is a kill as well
        await self.close()
        raise error

    def _death(self) -> TouchstoneError:
        """Why the child is gone: want of memory and a lost device are told apart from a plain crash."""
        assert self._child
        ending = f"The worker process for {self.key.model} on {self.key.device} died: {self._child.ending()}."
        line = self._child.last_line() or ""
        cause = self._kills.cause() if self._kills and self._child.killed_from_outside else None
        if cause or faults.code_of(line) == "out_of_memory":
            held = f" It held {self.peak_bytes / 1e6:.0f} MB." if self.peak_bytes else ""
            why = f" The kernel ended it because {cause} ran out." if cause else ""
            remedy = "Close other programs, lower text.context_tokens, or choose a smaller model."
            return OutOfMemory(f"{ending}{why}{held}", remedy, held_bytes=self.peak_bytes)
        if faults.code_of(line) == "device_lost":
            return DeviceLost(ending, "Wait for the driver to recover, then refresh the devices; run `doctor`.")
        return WorkerCrashed(
            ending, "Run the job again; if it repeats, choose another device or engine and run `doctor`."
        )

    def _take(self, frame: Header) -> None:
        """Keeps what concerns the worker itself, and raises what the child reports as failed."""
        if frame["op"] == "beat":
            self._note_memory(frame.get("resident_bytes"))
        elif frame["op"] == "failed":
            error = from_code(frame["code"], frame["detail"], frame["remedy"], **frame.get("extra", {}))
            if isinstance(error, DeviceLost | WorkerCrashed):
                self.loaded = None  # after such a fault the process is not trusted again
            raise error

    def _note_memory(self, resident_bytes: int | None) -> None:
        self.resident_bytes = resident_bytes
        self.peak_bytes = max(filter(None, (self.peak_bytes, resident_bytes)), default=None)
        if self._child and not self._child.has_ended:
            self._kills = oomkills.watch(self._child.pid)

    async def _watch_cancel(self, job_id: str, cancelling: asyncio.Event) -> None:
        await cancelling.wait()
        assert self._child
        self._child.send({"op": "cancel", "job": job_id})
        await asyncio.sleep(self._limits.cancel_s)
        self._child.kill()

    def _hang(self, why: str) -> None:
        self.hung = why

    def _hung_error(self) -> WorkerHung:
        return WorkerHung(
            f"The worker for {self.key.model} on {self.key.device} was stopped: {self.hung}.",
            "Run the job again; if the model is just slow here, raise the limits under supervision in config.yaml.",
        )
