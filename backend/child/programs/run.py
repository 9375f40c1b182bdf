"""The worker program: load one model and run jobs on it until stdin ends. Its frames are in `wire_protocol.py`."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import cast

from backend.child import artifact_writer, process
from backend.child.model_files import CHANGED, OpenedFiles
from backend.child.token_batcher import TokenBatcher
from backend.child.wire_protocol import (
    WIRE_VERSION,
    ArtifactFrame,
    BeatFrame,
    Channel,
    DoneFrame,
    FailedFrame,
    Frame,
    HelloFrame,
    LoadedFrame,
    MemoryUse,
    ResultFields,
    WireError,
)
from backend.common import error_patterns
from backend.common.commands import command
from backend.common.engine_api import EventData, LoraAdapter
from backend.common.errors import ModelBroken, TouchstoneError
from backend.common.llama_parameters import llama_parameters_from
from backend.common.memory_plan import plan_order_from
from backend.common.types import JsonObject, MeasuredBuffers, MemoryFit, ModelFile, ModelStamp, Placement
from backend.devices import DriverWitness, backends, detected_device_from, driver_witness, show_only, split_id
from backend.engines import LoadRequest, RunRequest, RunResult, Session, engines, load_engine
from backend.tasks.lyrics.generation import write_lyrics

BEAT_S = 1.0
DIGEST_S = 0.2  # how long a loaded model waits for its digest


def main(channel: Channel) -> int:
    """Serve the parent until stdin ends."""
    worker = _Worker(channel)
    hello: HelloFrame = {
        "op": "hello",
        "wire": WIRE_VERSION,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
    }
    channel.send(hello)
    threading.Thread(target=worker.listen, daemon=True).start()
    threading.Thread(target=worker.send_heartbeats, daemon=True).start()
    worker.load_models()
    return 0


class _Worker:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loads: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._session: Session | None = None
        self._files: OpenedFiles | None = None
        self._witness: DriverWitness | None = None
        self._tokens = TokenBatcher(channel.send_all)

    def listen(self) -> None:
        """Receive frames. At the end of stdin, or after an invalid frame, exit at once, whatever native code runs."""
        try:
            while received := self._channel.receive():
                header = received[0]
                if header["op"] == "cancel":
                    self._cancelled.add(header["job"])
                elif header["op"] == "run":
                    # One thread for each job, so that jobs share the model; the parent sends no more than the slots.
                    arguments = (header["job"], self._run, header)
                    threading.Thread(target=self._run_guarded, args=arguments, daemon=True).start()
                else:
                    self._loads.put(header)
        except (OSError, WireError):
            pass
        os._exit(0)

    def send_heartbeats(self) -> None:
        """Send heartbeats: the interpreter is alive. Whether a job advances is seen from its own frames."""
        while True:
            time.sleep(BEAT_S)
            frame: BeatFrame = {"op": "beat", "resident_bytes": process.resident_bytes()}
            self._channel.send(frame)

    def load_models(self) -> None:
        """Load in the main thread, as some libraries require."""
        while True:
            self._run_guarded(None, self._load, self._loads.get())

    def _run_guarded(self, job: str | None, work: Callable[[Frame], None], order: Frame) -> None:
        """Send `failed` for any exception, so that only the death of the process is silent."""
        try:
            work(order)
        except TouchstoneError as error:
            self._fail(job, error.code, error.detail, error.remedy, error.extra)
        except MemoryError as error:
            remedy = "Close other programs or choose a smaller model."
            self._fail(job, "out_of_memory", f"The worker ran out of memory: {error}", remedy, {})
        except OSError as error:
            if disk_full := artifact_writer.disk_full_error(error):
                self._fail(job, disk_full.code, disk_full.detail, disk_full.remedy, {})
            else:
                self._fail_unexpected(job, error)
        except BaseException as error:  # noqa: BLE001 (the border of the process; a package may also raise SystemExit)
            self._fail_unexpected(job, error)

    def _load(self, order: Frame) -> None:
        request = LoadRequest(**order["request"])
        if order["request"].get("llama"):
            request = replace(request, llama=llama_parameters_from(order["request"]["llama"]))
        adapters = [LoraAdapter(**adapter) for adapter in order["request"].get("adapters") or []]
        request = replace(request, adapters=adapters)
        if order["request"].get("order"):
            request = replace(request, order=plan_order_from(order["request"]["order"]))
        if order["request"].get("detected_device"):
            request = replace(request, detected_device=detected_device_from(order["request"]["detected_device"]))
            show_only(split_id(request.device)[0], request.detected_device)
        self._session, self._files = _load_unchanged(order["engine"], request)
        self._witness = driver_witness(backends()[split_id(request.device)[0]], request.detected_device)
        files, stamp = self._files.describe(DIGEST_S)
        frame: LoadedFrame = {
            "op": "loaded",
            "placement": cast(Placement, asdict(self._witnessed(self._session.placement))),  # as JSON
            "threads": self._session.threads,
            "versions": {**self._session.versions, "python": sys.version.split()[0]},
            "model_file": self._session.model_file or Path(request.model_path).name,
            "files": [cast(ModelFile, asdict(file)) for file in files],
            "model_stamp": cast(ModelStamp, asdict(stamp)) if stamp else None,
            "resident_bytes": process.resident_bytes(),
            "slots": self._session.slots or request.slots,
            "context_tokens": self._session.context_tokens,
            "fit": cast(MemoryFit, asdict(self._session.fit)) if self._session.fit else None,
            "measured": cast(MeasuredBuffers, asdict(self._session.measured)) if self._session.measured else None,
        }
        self._channel.send(frame)

    def _run(self, order: Frame) -> None:
        job = order["job"]
        assert self._session and self._files, "the parent sends `load` before `run`"
        process.reset_peak()
        device_bytes = self._session.device_bytes
        before = process.resident_bytes()
        device_before = device_bytes()
        start = time.perf_counter()
        first_token_s: float | None = None

        request = RunRequest(**order["request"])
        writer = artifact_writer.ArtifactWriter(request.folder)
        tokens = self._tokens.open_job(job)

        def emit(event: str, data: EventData) -> bool:
            nonlocal first_token_s
            if "text" in data:
                if data["count"]:
                    first_token_s = first_token_s or time.perf_counter() - start
                tokens.add(data)
            elif "media_type" in data:
                tokens.flush()
                size = writer.deliver(data["name"])
                artifact: ArtifactFrame = {
                    "op": "artifact",
                    "job": job,
                    "name": data["name"],
                    "media_type": data["media_type"],
                    "bytes": size,
                }
                self._channel.send(artifact)
            elif "phase" in data:
                self._channel.send({"op": event, "job": job, **data})
            return job in self._cancelled

        cancelled_early = job in self._cancelled
        try:
            run = partial(write_lyrics, self._session) if request.song else self._session.run
            result = None if cancelled_early else run(replace(request, folder=writer.open()), emit)
        finally:
            tokens.flush()
        run_s = time.perf_counter() - start
        _, stamp = self._files.describe(DIGEST_S)
        frame: DoneFrame = {
            "op": "done",
            "job": job,
            "cancelled": job in self._cancelled,
            **_result_fields(result),
            "run_s": run_s,
            "first_token_s": first_token_s,
            "memory": _memory_use(before, device_before, None if device_before is None else device_bytes()),
            "placement": self._find_placement(),
            "model_stamp": cast(ModelStamp, asdict(stamp)) if stamp else None,
        }
        self._channel.send(frame)
        self._cancelled.discard(job)

    def _find_placement(self) -> Placement | None:
        """Return where the model is at the end of a job, as JSON.

        The job succeeded, so a failed look-up is not an error of the job.
        """
        assert self._session
        try:
            placement = self._session.find_placement()
        except Exception as error:  # noqa: BLE001 (of any library)
            reason = f"At the end of the job the placement could not be looked up: {type(error).__name__}: {error}."
            placement = Placement(None, [], reason[:400])
        return cast(Placement, asdict(self._witnessed(placement))) if placement else None

    def _witnessed(self, placement: Placement) -> Placement:
        return self._witness.check(placement) if self._witness else placement

    def _fail_unexpected(self, job: str | None, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        code = error_patterns.classify_error_text(text) or ("model_load_failed" if job is None else "worker_crashed")
        self._fail(job, code, text, f"Retry; if it repeats, run `{command('doctor')}` and report its output.", {})

    def _fail(self, job: str | None, code: str, detail: str, remedy: str, extra: JsonObject) -> None:
        self._cancelled.discard(job or "")
        frame: FailedFrame = {
            "op": "failed",
            "job": job,
            "code": code,
            "detail": detail,
            "remedy": remedy,
            "extra": extra,
        }
        self._channel.send(frame)


def _result_fields(result: RunResult | None) -> ResultFields:
    """Return the fields of a result for the frame; None: the job was cancelled before the engine got it."""
    return {
        "counts": result.counts if result else {},
        "finish_reason": result.finish_reason if result else "cancelled",
        "chat_template": result.chat_template if result else None,
        "audio_s": result.audio_s if result else None,
        "phases": result.phases if result else {},
        "chosen": dict(result.chosen) if result else {},
        "evidence": result.evidence if result else "",
    }


def _load_unchanged(engine: str, request: LoadRequest) -> tuple[Session, OpenedFiles]:
    """Load a model. Raises ModelBroken if a file was replaced meanwhile, whether the load failed or not."""
    path = Path(request.model_path)
    others = (*request.operator_libraries, *(adapter.path for adapter in request.adapters))
    files = OpenedFiles(path, map(Path, others))
    try:
        session = load_engine(engine).load(request)
    except Exception as error:
        if changed := files.find_change():
            raise _changed_error(changed) from error
        raise
    if changed := files.find_change():
        raise _changed_error(changed)
    if engines()[engine].runs_user_code:
        files.add_modules_from(path.parent)
    return session, files


def _changed_error(changed: str) -> ModelBroken:
    return ModelBroken(
        f"{changed} was replaced, changed or deleted while it was loaded.",
        "Wait until it is complete, then rerun the job.",
        **{CHANGED: changed},
    )


def _memory_use(before: int | None, device_before: int | None, device_after: int | None) -> MemoryUse:
    """Return the bytes taken on the card if the engine measures them, else those of this process."""
    if device_before is None or device_after is None:
        return {
            "before_bytes": before,
            "peak_bytes": process.peak_bytes(),
            "after_bytes": process.resident_bytes(),
        }
    # Allocators on cards keep what they once took, so the last figure is the peak.
    peak = max(device_before, device_after)
    return {"before_bytes": device_before, "peak_bytes": peak, "after_bytes": device_after}
