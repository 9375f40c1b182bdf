"""The worker program: holds one loaded model and runs jobs on it.

Parent → child: `load {engine, request}`, `run {job, request}`, `cancel {job}`. Child → parent: `hello`, `beat`,
`loaded`, `progress`, `token`, `artifact`, `done`, `failed {job?, code, detail, remedy, extra}`. EOF ends it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from backend.child import artifact_writer, process
from backend.child.token_batcher import TokenBatcher
from backend.child.wire_protocol import WIRE_VERSION, Channel, Header, WireError
from backend.common import error_patterns
from backend.common.errors import TouchstoneError
from backend.devices import detected_device_from, show_only, split_id
from backend.engines import LoadRequest, RunRequest, Session, load_engine
from backend.tasks.lyrics.generation import write_lyrics

BEAT_S = 1.0


def main(channel: Channel) -> int:
    """Serves the parent until stdin ends."""
    program = _Program(channel)
    channel.send({"op": "hello", "wire": WIRE_VERSION, "pid": os.getpid(), "python": sys.version.split()[0]})
    threading.Thread(target=program.listen, daemon=True).start()
    threading.Thread(target=program.beat, daemon=True).start()
    program.work()
    return 0


class _Program:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._orders: queue.SimpleQueue[Header] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._session: Session | None = None
        self._tokens = TokenBatcher(channel.send_all)

    def listen(self) -> None:
        """Reads orders. At the end of stdin, or of sense, the process goes at once, whatever native code does."""
        try:
            while received := self._channel.receive():
                header = received[0]
                if header["op"] == "cancel":
                    self._cancelled.add(header["job"])
                elif header["op"] == "run":
                    # A thread each, so that jobs share the model; the parent sends no more than there are slots.
                    arguments = (header["job"], self._run, header)
                    threading.Thread(target=self._guarded, args=arguments, daemon=True).start()
                else:
                    self._orders.put(header)
        except (OSError, WireError):
            pass
        os._exit(0)

    def beat(self) -> None:
        """Says that the interpreter is alive; whether the work advances is seen from its own frames."""
        while True:
            time.sleep(BEAT_S)
            self._channel.send({"op": "beat", "resident_bytes": process.resident_bytes()})

    def work(self) -> None:
        """Loads in the main thread, which some libraries want."""
        while True:
            self._guarded(None, self._load, self._orders.get())

    def _guarded(self, job: str | None, work: Callable[[Header], None], order: Header) -> None:
        """Any failure becomes a frame; only the process's death is silent."""
        try:
            work(order)
        except TouchstoneError as error:
            self._fail(job, error.code, error.detail, error.remedy, error.extra)
        except MemoryError as error:
            remedy = "Close other programs or choose a smaller model."
            self._fail(job, "out_of_memory", f"The worker ran out of memory: {error}", remedy, {})
        except OSError as error:
            if disk_full := artifact_writer.full(error):
                self._fail(job, disk_full.code, disk_full.detail, disk_full.remedy, {})
            else:
                self._fail_unforeseen(job, error)
        except BaseException as error:  # noqa: BLE001 (the border of the process; also what a package exits with)
            self._fail_unforeseen(job, error)

    def _load(self, order: Header) -> None:
        request = LoadRequest(**order["request"])
        if order["request"].get("detected_device"):
            request = replace(request, detected_device=detected_device_from(order["request"]["detected_device"]))
            show_only(split_id(request.device)[0], request.detected_device)
        self._session = load_engine(order["engine"]).load(request)
        self._channel.send(
            {
                "op": "loaded",
                "placement": asdict(self._session.placement),
                "threads": self._session.threads,
                "versions": {**self._session.versions, "python": sys.version.split()[0]},
                "model_file": self._session.model_file,
                "resident_bytes": process.resident_bytes(),
            }
        )

    def _run(self, order: Header) -> None:
        job = order["job"]
        assert self._session is not None, "the parent loads before it runs"
        process.reset_peak()
        on_card = self._session.device_bytes
        before = process.resident_bytes()
        card_before = on_card()
        start = time.perf_counter()
        first_token_s: float | None = None

        request = RunRequest(**order["request"])
        box = artifact_writer.ArtifactWriter(request.folder)
        tokens = self._tokens.line(job)

        def emit(event: str, data: dict[str, Any]) -> bool:
            nonlocal first_token_s
            if event == "token":
                if data["count"]:
                    first_token_s = first_token_s or time.perf_counter() - start
                tokens.add(data)
            elif event == "artifact":
                tokens.flush()
                self._channel.send({"op": event, "job": job, **data, "bytes": box.hand_over(data["name"])})
            elif event != "poll":
                self._channel.send({"op": event, "job": job, **data})
            return job in self._cancelled

        cancelled_early = job in self._cancelled
        try:
            run = partial(write_lyrics, self._session) if request.song else self._session.run
            result = None if cancelled_early else run(replace(request, folder=box.open()), emit)
        finally:
            tokens.flush()
        self._channel.send(
            {
                "op": "done",
                "job": job,
                "cancelled": job in self._cancelled,
                "counts": result.counts if result else {},
                "finish_reason": result.finish_reason if result else "cancelled",
                "chat_template": result.chat_template if result else None,
                "audio_s": result.audio_s if result else None,
                "phases": result.phases if result else {},
                "chosen": result.chosen if result else {},
                "evidence": result.evidence if result else "",
                "run_s": time.perf_counter() - start,
                "first_token_s": first_token_s,
                "memory": {
                    "before_bytes": before,
                    "peak_bytes": process.peak_bytes(),
                    "after_bytes": process.resident_bytes(),
                }
                if card_before is None or (card_after := on_card()) is None
                else {  # allocators on cards keep what they once took, so the end is the peak
                    "before_bytes": card_before,
                    "peak_bytes": max(card_before, card_after),
                    "after_bytes": card_after,
                },
            }
        )
        self._cancelled.discard(job)

    def _fail_unforeseen(self, job: str | None, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        code = error_patterns.classify_error_text(text) or ("model_load_failed" if job is None else "worker_crashed")
        self._fail(job, code, text, "Try again; if it repeats, run `doctor` and report its output.", {})

    def _fail(self, job: str | None, code: str, detail: str, remedy: str, extra: dict[str, Any]) -> None:
        self._cancelled.discard(job or "")
        self._channel.send(
            {"op": "failed", "job": job, "code": code, "detail": detail, "remedy": remedy, "extra": extra}
        )
