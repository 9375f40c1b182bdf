"""A worker: one child that holds one loaded model and runs up to `slots` jobs at once. Unloading ends the process.

Silence, a load or a step beyond its limit counts as hung. A failure of one job is that job's alone, also when it does
not stop or step: the child then gets no more jobs, and is killed when the last of those it has ends. Silence and death
are the end of all jobs in it.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from backend.child.handle import ChildProcess, Spawn
from backend.child.wire_protocol import WIRE_VERSION, Header
from backend.common.data_dir import scratch_home
from backend.common.errors import DeviceLost, OutOfMemory, TouchstoneError, WorkerCrashed, WorkerHung, from_code
from backend.common.system import oom_kills
from backend.common.types import Placement, PlacementPart
from backend.engines import LoadRequest, RunRequest
from backend.scheduling.exit_reason import classify_exit

OnMemory = Callable[[int], Awaitable[None]]
OVERSLEPT_S = 0.5  # a timer that comes later than this tells of the server, not of the child


async def ignore_frame(*_: object) -> None:
    """What nobody asked to be told."""


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
class LoadResult:
    """What the child said after loading. `model_file` is the one of a model's files that was chosen, where one was."""

    placement: Placement
    threads: int | None
    versions: dict[str, str]
    model_file: str | None = None


@dataclass
class _Run:
    """A job in the child: its frames, then None at its end without an answer; `hung` if it is given up for that.

    `shared` says whether it ever had the child together with another job.
    """

    shared: bool
    waits_since: float  # for its next frame; what the server does between two frames is not the child's delay
    look_at: float = math.inf
    frames: asyncio.Queue[Header | None] = field(default_factory=asyncio.Queue)
    hung: TouchstoneError | None = None
    looking: asyncio.TimerHandle | None = None


class Worker:
    """Starts its child at `load`; from then on a task of its own reads all that the child sends."""

    def __init__(
        self, key: WorkerKey, python: str, limits: Limits, spawn: Spawn, scratch_prefix: str = "touchstone-"
    ) -> None:
        self.key = key
        self._python = python
        self._limits = limits
        self._spawn = spawn
        self._scratch_prefix = scratch_prefix
        self._child: ChildProcess | None = None
        self._pump: asyncio.Task[None] | None = None
        self._runs: dict[str, _Run] = {}
        self._heard_at = 0.0
        self._kills: oom_kills.OomWatch | None = None
        self._end: TouchstoneError | None = None
        self._scratch: str | None = None
        self.resident_bytes: int | None = None
        self.peak_bytes: int | None = None
        self.loaded: LoadResult | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, or None before the start."""
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        """Whether a model is loaded and nothing has cast doubt on the child."""
        return self.loaded is not None

    async def load(self, engine: str, request: LoadRequest, on_memory: OnMemory = ignore_frame) -> LoadResult:
        """Starts the child and loads the model; `request.scratch` is filled in here.

        `on_memory` is called with the child's resident bytes as they grow.
        Raises WorkerCrashed, WorkerHung, or what the engine said (ModelLoadFailed, ModelBroken, OutOfMemory …).
        """
        self._scratch = tempfile.mkdtemp(prefix=self._scratch_prefix, dir=scratch_home())
        try:
            async with asyncio.timeout(self._limits.load_s):
                frame = await self._start(engine, replace(request, scratch=self._scratch), on_memory)
        except TimeoutError:
            await self.close()
            raise self._hung(f"loading took longer than {self._limits.load_s:g} s") from None
        except BaseException:
            await self.close()
            raise
        parts = [PlacementPart(**part) for part in frame["placement"]["parts"]]
        placement = Placement(None, parts, frame["placement"]["evidence"])
        self.loaded = LoadResult(placement, frame["threads"], frame["versions"], frame.get("model_file"))
        self._note_memory(frame["resident_bytes"])
        self._pump = asyncio.create_task(self._read_all())
        return self.loaded

    async def run(self, job_id: str, request: RunRequest, cancelling: asyncio.Event) -> AsyncGenerator[Header, None]:
        """Runs a job and yields its frames, `done` last; setting `cancelling` ends it within a step or by a kill.

        Raises WorkerCrashed, WorkerHung, OutOfMemory, DeviceLost, or what the engine said.
        """
        assert self._child
        if self.loaded is None:  # it died, or was given up, since it was chosen
            raise self.exit_error()
        self._heard_at = asyncio.get_running_loop().time()
        run = self._runs[job_id] = _Run(bool(self._runs), self._heard_at)
        for other in self._runs.values():
            other.shared = len(self._runs) > 1 or other.shared
        self._child.send({"op": "run", "job": job_id, "request": vars(request)})  # `asdict` would copy all messages
        watcher = asyncio.create_task(self._watch_cancel(job_id, cancelling))
        self._look(run)
        ended = False
        try:
            while not ended:
                frame = await self._next(run)
                ended = frame["op"] in ("done", "failed")
                if frame["op"] == "failed":
                    raise self._reported(frame)
                yield {**frame, "batched": run.shared} if ended else frame
        finally:
            watcher.cancel()
            if run.looking:
                run.looking.cancel()
            del self._runs[job_id]
            if not ended:
                self.loaded = None  # dead, hung, or left in the middle: its state is not known any more
            if not self._runs and not self.alive:
                self._end = self._end or self._given_up()
                await self.close()

    def exit_error(self) -> TouchstoneError:
        """What ended the child, for one of its jobs."""
        end = self._end or self._given_up()
        return from_code(end.code, end.detail, end.remedy, **end.extra)

    async def close(self) -> None:
        """Ends the child and waits until it is gone. May be called again."""
        self.loaded = None
        if self._child:
            self._child.kill()
            ending: asyncio.Future[Any] = self._pump or asyncio.ensure_future(self._child.ended())
            await asyncio.wait({ending}, timeout=2.0)
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        """Its folder goes with the child: the socket of a program that it started may lie there."""
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    async def _start(self, engine: str, request: LoadRequest, on_memory: OnMemory) -> Header:
        self._child = ChildProcess(self._spawn(self._python, ["run"]), asyncio.get_running_loop())
        self._kills = oom_kills.watch(self._child.pid)
        hello = await self._first("hello", ignore_frame)
        if hello.get("wire") != WIRE_VERSION:
            raise WorkerCrashed(
                f"The child speaks wire version {hello.get('wire')}, the server {WIRE_VERSION}.",
                "Restart the server, so that both come from the same files.",
            )
        self._child.send({"op": "load", "engine": engine, "request": asdict(request)})
        return await self._first("loaded", on_memory)

    async def _first(self, op: str, on_memory: OnMemory) -> Header:
        """Reads up to the first frame of that kind."""
        assert self._child
        while frame := await self._child.receive():
            if frame["op"] == "failed":
                raise self._reported(frame)
            if frame["op"] == op:
                return frame
            if frame["op"] == "beat" and (bytes_ := frame.get("resident_bytes")):
                await on_memory(bytes_)
        raise self._death()

    async def _read_all(self) -> None:
        """Takes every frame the child sends, also while nothing runs, until its end."""
        assert self._child
        while frame := await self._child.receive():
            self._heard_at = asyncio.get_running_loop().time()
            if frame["op"] == "beat":
                self._note_memory(frame.get("resident_bytes"))
            elif run := self._runs.get(frame.get("job", "")):
                run.frames.put_nowait(frame)
        self.loaded = None
        self._end = self._end or self._death()
        self._remove_scratch()
        for run in self._runs.values():
            run.frames.put_nowait(None)

    async def _next(self, run: _Run) -> Header:
        """The job's next frame. Raises what ended the child, or WorkerHung."""
        run.waits_since = self._heard_at = asyncio.get_running_loop().time()
        frame = await run.frames.get()
        if frame is None:
            raise run.hung or self.exit_error()
        return frame

    def _look(self, run: _Run) -> None:
        """Ends the job if its child was silent, or its step takes, for too long; else looks again when that may be.

        One timer that comes seldom: to set one for each frame takes longer than all else that a frame needs here.
        """
        loop = asyncio.get_running_loop()
        now, silent_by = loop.time(), self._heard_at + self._limits.silence_s
        late_by = run.waits_since + self._limits.step_s
        if now > run.look_at + OVERSLEPT_S:  # we were stopped ourselves: what it sent meanwhile comes now
            run.waits_since = self._heard_at = now
            late_by = silent_by = now + min(self._limits.step_s, self._limits.silence_s)
        elif not run.frames.empty():  # nobody waits: its frames have not been taken yet
            late_by = silent_by = now + min(self._limits.step_s, self._limits.silence_s)
        elif now >= silent_by:
            run.hung = self._end = self._hung(f"it gave no sign of life for {self._limits.silence_s:g} s")
        elif now >= late_by:
            run.hung = self._hung(f"no step was finished for {self._limits.step_s:g} s")
        if run.hung:
            run.frames.put_nowait(None)
            return
        run.look_at = min(silent_by, late_by)
        run.looking = loop.call_at(run.look_at, self._look, run)

    def _reported(self, frame: Header) -> TouchstoneError:
        """The error that the child reports; after some the child is not trusted with another job."""
        error = from_code(frame["code"], frame["detail"], frame["remedy"], **frame.get("extra", {}))
        if isinstance(error, DeviceLost | OutOfMemory | WorkerCrashed):
            self.loaded = None
        return error

    def _note_memory(self, resident_bytes: int | None) -> None:
        self.resident_bytes = resident_bytes
        self.peak_bytes = max(filter(None, (self.peak_bytes, resident_bytes)), default=None)
        if self._child and not self._child.has_ended:
            self._kills = oom_kills.watch(self._child.pid)

    async def _watch_cancel(self, job_id: str, cancelling: asyncio.Event) -> None:
        await cancelling.wait()
        assert self._child
        self._child.send({"op": "cancel", "job": job_id})
        await asyncio.sleep(self._limits.cancel_s)
        run = self._runs[job_id]
        run.hung = self._hung("it did not end a job that was cancelled")
        run.frames.put_nowait(None)

    def _death(self) -> TouchstoneError:
        assert self._child
        return classify_exit(self._child, self._name, self._kills, self.peak_bytes)

    def _given_up(self) -> TouchstoneError:
        detail = f"The worker for {self._name} was given up when another of its jobs failed."
        return WorkerCrashed(detail, "Run the job again; it gets a new worker.")

    def _hung(self, why: str) -> TouchstoneError:
        return WorkerHung(
            f"The worker for {self._name} was stopped: {why}.",
            "Run the job again; if the model is just slow here, raise the limits under supervision in config.yaml.",
        )

    @property
    def _name(self) -> str:
        return f"{self.key.model} on {self.key.device}"
