"""A worker: one child process that holds one loaded model and runs up to `slots` jobs at once. Unloading ends it.

Three timeouts count as hung: no heartbeat, a load, and a step of a job. A job that fails, ignores a cancel or exceeds
its step timeout ends alone: the child gets no more jobs and is killed when its last job has ended. A missing heartbeat
or the death of the child ends all of its jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from backend.child.handle import ChildProcess, ChildStartError, Spawn
from backend.child.model_files import digest_of
from backend.child.spawner import spawn_child
from backend.child.wire_protocol import (
    WIRE_VERSION,
    ArtifactFrame,
    BeatFrame,
    DoneFrame,
    FailedFrame,
    Frame,
    HelloFrame,
    LoadedFrame,
    ProgressFrame,
    TokenFrame,
)
from backend.common import error_patterns
from backend.common.clean_text import restore_path
from backend.common.commands import command
from backend.common.config.frame_schema import FrameSchema
from backend.common.data_dir import scratch_home
from backend.common.errors import (
    DeviceLost,
    DeviceWrong,
    ModelLoadFailed,
    OutOfMemory,
    TouchstoneError,
    WorkerCrashed,
    WorkerHung,
    from_child,
    from_code,
)
from backend.common.system import oom_kills
from backend.common.system.resources import memory_free_bytes
from backend.common.types import MeasuredBuffers, MemoryFit, ModelFile, ModelStamp, Placement
from backend.engines import LoadRequest, RunRequest

log = logging.getLogger(__name__)
OnMemory = Callable[[int], Awaitable[None]]
KILLED = "killed_from_outside"  # in `extra` of an error: another program killed the worker
_SCHEMA = FrameSchema(
    HelloFrame,
    LoadedFrame,
    BeatFrame,
    ProgressFrame,
    TokenFrame,
    ArtifactFrame,
    DoneFrame,
    FailedFrame,
)
QUEUED_LIMIT = 200_000  # frames of one job that wait to be handled
EVENT_LOOP_STALL_S = 0.5  # if a timer fires this late, the server stalled, so the worker is not to blame


async def ignore_frame(*_: object) -> None:
    """The default callback: ignore the frame."""


@dataclass(frozen=True)
class WorkerKey:
    """What a worker holds. Jobs with the same key can share it."""

    device: str
    runtime: str
    engine: str
    model: str


@dataclass(frozen=True)
class Limits:
    """Timeouts: no heartbeat, loading a model, a step of a job, and a cancel."""

    silence_s: float
    load_s: float
    step_s: float
    cancel_s: float


@dataclass(frozen=True)
class LoadResult:
    """What the child reported after loading.

    `model_file` is the name of the file, or of the one that was chosen of a folder; `model_stamp` identifies what was
    opened, and `files` are all files of the model as they were then. `slots` jobs may run at once, each with
    `context_tokens`.
    """

    placement: Placement
    threads: int | None
    versions: dict[str, str]
    model_file: str | None = None
    model_stamp: ModelStamp | None = None
    files: list[ModelFile] = field(default_factory=list)
    slots: int = 1
    context_tokens: int | None = None
    fit: MemoryFit | None = None
    measured: MeasuredBuffers | None = None


@dataclass
class _Run:
    """A job in the child: its frames, then None if it ends without an answer. `timeout_error` is set if it hung.

    `is_shared`: another job was in the child at the same time, at least once.
    """

    job_id: str
    is_shared: bool
    waiting_since: float  # for the next frame; the time that the server spends between two frames does not count
    check_at: float = math.inf
    frames: asyncio.Queue[Frame | None] = field(default_factory=asyncio.Queue)
    timeout_error: TouchstoneError | None = None
    timer: asyncio.TimerHandle | None = None


def find_change(files: list[ModelFile]) -> ModelFile | None:
    """Return the first of a loaded model's files that is not the same on disk now, None if all are.

    It reads the disk, which may hang: call it in a separate thread.
    """
    for number, file in enumerate(files):
        try:
            now = os.stat(file.path)  # noqa: PTH116 (a hundred files may be compared before a job)
        except OSError:
            return file
        if not file.is_same(now):
            return file
        if file.changed_ns != now.st_ctime_ns:  # a new link or new permissions change it too: the content decides
            if file.digest is None or digest_of(file) != file.digest:
                return file
            files[number] = replace(file, changed_ns=now.st_ctime_ns)
    return None


class Worker:
    """Starts the child in `load`. From then on a task reads all frames of the child."""

    def __init__(
        self, key: WorkerKey, python: str, limits: Limits, spawn: Spawn, scratch_prefix: str = "touchstone-"
    ) -> None:
        self.key = key
        self._python = python
        self._limits = limits
        self._spawn = spawn
        self._scratch_prefix = scratch_prefix
        self._child: ChildProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._runs: dict[str, _Run] = {}
        self._heard_at = 0.0  # the last frame or heartbeat, on the clock of the event loop
        self._oom_watch: oom_kills.OomWatch | None = None
        self._exit_error: TouchstoneError | None = None
        self._timeout: str | None = None  # the timeout for which the child is killed
        self._scratch_dir: str | None = None
        self.resident_bytes: int | None = None
        self.peak_bytes: int | None = None
        self.loaded: LoadResult | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, None before the start."""
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        """Whether a model is loaded and the child accepts jobs."""
        return self.loaded is not None

    async def load(
        self, engine: str, request: LoadRequest, on_memory: OnMemory = ignore_frame, job_id: str | None = None
    ) -> LoadResult:
        """Start the child and load the model; `request.scratch` is filled in here.

        `on_memory` is a callback with the child's resident bytes at each heartbeat. Optional. `job_id` is the job that
        needs the model, for the log. Optional.
        Raises WorkerCrashed, WorkerHung, or the error of the engine (ModelLoadFailed, ModelBroken, OutOfMemory …).
        """
        clock = asyncio.get_running_loop().time
        started_at = clock()
        self._scratch_dir = await self._make_scratch_dir()
        try:
            async with asyncio.timeout(self._limits.load_s):
                frame = await self._start(engine, replace(request, scratch=self._scratch_dir), on_memory, job_id)
        except TimeoutError:
            error = self._hung(f"loading did not finish within the timeout of {self._limits.load_s:g} s")
            await self.close(job_id)
            raise error from None
        except TouchstoneError as error:
            self._log(logging.INFO, "worker failed to load", job=job_id, code=error.code, detail=error.detail)
            await self.close(job_id, "loading failed")
            raise
        except BaseException:
            await self.close(job_id, "loading was cancelled")
            raise
        placement: Placement = frame["placement"]
        if any(part.share_of_nodes is not None and not 0 <= part.share_of_nodes <= 1.001 for part in placement.parts):
            await self.close(job_id, "its placement is invalid")
            raise WorkerCrashed(
                f"The worker for {self._name} was stopped: it reported a share of the model outside 0 to 1.",
                f"Restart the server. If it repeats, run `{command('doctor')}` and report its output.",
            )
        self.loaded = LoadResult(
            replace(placement, on_device=None),
            frame["threads"],
            frame["versions"],
            frame.get("model_file"),
            frame["model_stamp"],
            [replace(file, path=restore_path(file.path)) for file in frame["files"]],
            slots=max(1, frame.get("slots", request.slots)),
            context_tokens=frame.get("context_tokens"),
            fit=frame.get("fit"),
            measured=frame.get("measured"),
        )
        self._note_memory(frame["resident_bytes"])
        self._reader = asyncio.create_task(self._read_all())
        if self.loaded.fit and self.loaded.fit.retried:
            self._log(logging.WARNING, "loaded with fewer layers", job=job_id, cause=self.loaded.fit.retried)
        self._log(logging.INFO, "worker ready", job=job_id, load_s=round(clock() - started_at, 3))
        return self.loaded

    async def run(self, job_id: str, request: RunRequest, cancelling: asyncio.Event) -> AsyncGenerator[Frame, None]:
        """Run a job and yield its frames, `done` last. Setting `cancelling` ends it within a step, else by a kill.

        Raises WorkerCrashed, WorkerHung, OutOfMemory, DeviceLost, or the error of the engine.
        """
        assert self._child
        if self.loaded is None:  # it died or was discarded since it was chosen
            raise self.exit_error()
        self._heard_at = asyncio.get_running_loop().time()
        run = self._runs[job_id] = _Run(job_id, bool(self._runs), self._heard_at)
        for other in self._runs.values():
            other.is_shared = len(self._runs) > 1 or other.is_shared
        self._child.send({"op": "run", "job": job_id, "request": vars(request)})  # `asdict` would copy all messages
        watcher = asyncio.create_task(self._watch_cancel(job_id, cancelling))
        self._check_timeouts(run)
        ended = False
        try:
            while not ended:
                frame = await self._next_frame(run)
                ended = frame["op"] in ("done", "failed")
                if frame["op"] == "failed":
                    raise self._to_error(frame)
                yield {**frame, "batched": run.is_shared} if ended else frame
        finally:
            watcher.cancel()
            if run.timer:
                run.timer.cancel()
            del self._runs[job_id]
            if not ended:
                self.loaded = None  # dead, hung, or left in the middle of a job: its state is unknown
            if not self._runs and not self.alive:
                self._exit_error = self._exit_error or self._discarded()
                await self.close(job_id, self._exit_error.detail)

    def exit_error(self) -> TouchstoneError:
        """Return why the child ended, as a new exception for one of its jobs."""
        error = self._exit_error or self._discarded()
        return from_code(error.code, error.detail, error.remedy, **error.extra)

    async def close(self, job_id: str | None = None, cause: str | None = None) -> None:
        """End the child and wait until it is gone. May be called again.

        `job_id` and `cause`, why the worker is no longer needed, are for the log. Optional.
        """
        self.loaded = None
        if self._child:
            if not self._child.has_ended:
                if self._timeout:
                    self._log(logging.WARNING, "worker killed", job=job_id, cause=self._timeout)
                else:
                    self._log(logging.INFO, "worker stopped", job=job_id, cause=cause)
            self._child.kill()
            ending: asyncio.Future[Any] = self._reader or asyncio.ensure_future(self._child.ended())
            await asyncio.wait({ending}, timeout=2.0)
        await self._remove_scratch_dir()

    async def _make_scratch_dir(self) -> str:
        """Return a new scratch folder. If this call is cancelled, the folder is removed once it is there."""
        made = asyncio.ensure_future(asyncio.to_thread(tempfile.mkdtemp, None, self._scratch_prefix, scratch_home()))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(_remove_folder)
            raise

    async def _remove_scratch_dir(self) -> None:
        """Remove the scratch folder. It may hold the socket of a program that the child started."""
        folder, self._scratch_dir = self._scratch_dir, None
        if folder:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _start(self, engine: str, request: LoadRequest, on_memory: OnMemory, job_id: str | None) -> Frame:
        """Start the child and return its `loaded` frame."""
        try:
            self._child = await spawn_child(self._spawn, self._python, ["run"], _SCHEMA)
        except ChildStartError as error:
            raise ModelLoadFailed(
                f"The worker for {self._name} could not be started: {error}.",
                f"`{command('doctor')}` checks the interpreters and limits of this machine.",
            ) from error
        self._log(logging.INFO, "worker started", job=job_id, runtime=self.key.runtime, engine=engine)
        self._oom_watch = oom_kills.watch(self._child.pid)
        hello = await self._receive_first("hello", ignore_frame)
        if hello.get("wire") != WIRE_VERSION:
            raise WorkerCrashed(
                f"The child speaks wire version {hello.get('wire')}, the server {WIRE_VERSION}.",
                "Restart the server, so that both come from the same files.",
            )
        self._child.send({"op": "load", "engine": engine, "request": asdict(request)})
        return await self._receive_first("loaded", on_memory)

    async def _receive_first(self, op: str, on_memory: OnMemory) -> Frame:
        """Return the first frame of that kind. Raises the error that the child reports, or why it ended."""
        assert self._child
        while frame := await self._child.receive():
            if frame["op"] == "failed":
                raise self._to_error(frame)
            if frame["op"] == op:
                return frame
            if frame["op"] == "beat" and (bytes_ := frame.get("resident_bytes")):
                await on_memory(bytes_)
        raise self._classify_exit()

    async def _read_all(self) -> None:
        """Read all frames of the child until it ends, also while no job runs."""
        assert self._child
        while frame := await self._child.receive():
            self._heard_at = asyncio.get_running_loop().time()
            if frame["op"] == "beat":
                self._note_memory(frame.get("resident_bytes"))
            elif run := self._runs.get(frame.get("job") or ""):
                run.frames.put_nowait(frame)
                if run.frames.qsize() > QUEUED_LIMIT:
                    self._child.reject(f"it is the last of more than {QUEUED_LIMIT}")
        was_expected = self._exit_error is not None or self.loaded is None
        self.loaded = None
        self._exit_error = self._exit_error or self._classify_exit()
        if not was_expected:
            jobs = list(self._runs)
            self._log(
                logging.WARNING, "worker exited", jobs=jobs, code=self._exit_error.code, cause=self._exit_error.detail
            )
        for run in self._runs.values():
            run.frames.put_nowait(None)
        await self._remove_scratch_dir()

    async def _next_frame(self, run: _Run) -> Frame:
        """Return the job's next frame. Raises why the child ended, or WorkerHung."""
        run.waiting_since = self._heard_at = asyncio.get_running_loop().time()
        frame = await run.frames.get()
        if frame is None:
            raise run.timeout_error or self.exit_error()
        return frame

    def _check_timeouts(self, run: _Run) -> None:
        """End the job if the child's heartbeat or the job's step timed out; else check again when one of them could.

        It is one timer that rarely fires: a timer for each frame would cost more than all other work on a frame.
        """
        loop = asyncio.get_running_loop()
        now, heartbeat_by = loop.time(), self._heard_at + self._limits.silence_s
        step_by = run.waiting_since + self._limits.step_s
        if now > run.check_at + EVENT_LOOP_STALL_S:  # the server stalled: what the child sent meanwhile arrives now
            run.waiting_since = self._heard_at = now
            step_by = heartbeat_by = now + min(self._limits.step_s, self._limits.silence_s)
        elif not run.frames.empty():  # the server has not taken the frames that are there
            step_by = heartbeat_by = now + min(self._limits.step_s, self._limits.silence_s)
        elif now >= heartbeat_by:
            run.timeout_error = self._exit_error = self._hung(f"no heartbeat for {self._limits.silence_s:g} s")
        elif now >= step_by:
            run.timeout_error = self._hung(f"no step finished within the timeout of {self._limits.step_s:g} s")
        if run.timeout_error:
            self._log(logging.WARNING, "job timed out in the worker", job=run.job_id, cause=self._timeout)
            run.frames.put_nowait(None)
            return
        run.check_at = min(heartbeat_by, step_by)
        run.timer = loop.call_at(run.check_at, self._check_timeouts, run)

    def _to_error(self, frame: Frame) -> TouchstoneError:
        """Return the error that the child reports. After some of them the child gets no more jobs."""
        error = from_child(frame)
        if error.kills_worker or isinstance(error, DeviceLost | DeviceWrong | OutOfMemory):
            self.loaded = None
        return error

    def _note_memory(self, resident_bytes: int | None) -> None:
        self.resident_bytes = resident_bytes
        self.peak_bytes = max(filter(None, (self.peak_bytes, resident_bytes)), default=None)
        if self._child and not self._child.has_ended:
            self._oom_watch = oom_kills.watch(self._child.pid)

    async def _watch_cancel(self, job_id: str, cancelling: asyncio.Event) -> None:
        """Pass a cancel on to the child. End the job if the child does not end it within the timeout."""
        await cancelling.wait()
        assert self._child
        self._child.send({"op": "cancel", "job": job_id})
        await asyncio.sleep(self._limits.cancel_s)
        run = self._runs[job_id]
        run.timeout_error = self._hung(f"it did not end a cancelled job within {self._limits.cancel_s:g} s")
        self._log(logging.WARNING, "job timed out in the worker", job=job_id, cause=self._timeout)
        run.frames.put_nowait(None)

    def _classify_exit(self) -> TouchstoneError:
        assert self._child
        return classify_exit(self._child, self._name, self._oom_watch, self.peak_bytes)

    def _discarded(self) -> TouchstoneError:
        detail = f"The worker for {self._name} was discarded because another of its jobs failed."
        return WorkerCrashed(detail, "Rerun the job; it gets a new worker.")

    def _hung(self, timeout: str) -> TouchstoneError:
        """Return the error for a timeout, for which the child is killed."""
        self._timeout = timeout
        return WorkerHung(
            f"The worker for {self._name} was killed: {timeout}.",
            "Rerun the job. If the model is only slow here, raise the timeouts under `supervision` in config.yaml.",
        )

    def _log(self, level: int, message: str, **fields: object) -> None:
        log.log(level, message, extra={"pid": self.pid, "model": self.key.model, "device": self.key.device, **fields})

    @property
    def _name(self) -> str:
        return f"{self.key.model} on {self.key.device}"


def classify_exit(
    child: ChildProcess, name: str, oom_watch: oom_kills.OomWatch | None, peak_bytes: int | None
) -> TouchstoneError:
    """Return the error for the jobs of a child that exited: OutOfMemory, DeviceLost or WorkerCrashed.

    `oom_watch` returns whether the kernel killed the child for lack of memory. Optional.
    """
    summary = f"The worker process for {name} died: {child.exit_summary()}."
    code = error_patterns.classify_error_text(child.last_line() or "")
    cause = oom_watch.cause() if oom_watch and child.killed_from_outside else None
    if cause or code == "out_of_memory":
        free = memory_free_bytes()
        figures = [f"it held {peak_bytes / 1e6:.0f} MB"] if peak_bytes else []
        figures += [f"{free / 1e6:.0f} MB are free now"] if free is not None else []
        why = f" The kernel killed it because {cause} ran out" if cause else " It ran out of memory"
        return OutOfMemory(
            f"{summary}{why}{': ' if figures else ''}{', '.join(figures)}.",
            "Lower text.context_tokens, close other programs, or choose a smaller model.",
            held_bytes=peak_bytes,
            free_bytes=free,
        )
    if code == "device_lost":
        return DeviceLost(
            summary, f"Wait for the driver to recover, then refresh the devices; run `{command('doctor')}`."
        )
    return WorkerCrashed(
        summary,
        f"Rerun the job. If it fails again, choose another device or engine and run `{command('doctor')}`.",
        **({KILLED: True} if child.killed_from_outside else {}),
    )


def _remove_folder(made: asyncio.Future[str]) -> None:
    if not made.cancelled() and not made.exception():
        shutil.rmtree(made.result(), ignore_errors=True)
