"""A child that plays two cards and their workers. The name of a model's file chooses what its worker does.

| file             | worker                                                                                         |
|------------------|------------------------------------------------------------------------------------------------|
| half             | half of the model is on the card, half on the processor                                        |
| below            | slightly less than half is on the card                                                         |
| passed-off       | the job's device is the card, the model is on the processor                                    |
| contradiction    | the whole model is on the card and on the processor                                            |
| silent           | no word on where the model is                                                                  |
| leaves           | the model is on the processor at the end of the job; `leaves-partly`: most of it               |
| vanishes         | at the end of the job the library does not know where the model is                             |
| first-only       | the second card does not hold it: `first-only` is refused there                                |
| dies-loading     | ends while it loads                                                                            |
| dies-early       | ends before the first step; `dies-late`: after it                                              |
| no-memory        | refuses to load                                                                                |
| changes-once     | its file changed while it was loaded; `changes`: each time                                     |
| slow             | works until the file `slow.go` exists; `slow-load`: loads until then                           |
| lost             | the driver resets the first card at the first step                                             |
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from backend.child.artifact_writer import ArtifactWriter  # noqa: E402
from backend.child.model_files import CHANGED, OpenedFiles  # noqa: E402
from backend.child.wire_protocol import WIRE_VERSION, Channel, claim_stdio  # noqa: E402
from backend.common.device_api import DetectedDevice  # noqa: E402
from backend.common.types import Proof  # noqa: E402

CARDS = 2
PLACED = {
    "half": {"cpu": 0.5, "": 0.5},
    "below": {"": 0.49, "cpu": 0.51},
    "passed-off": {"cpu": 1.0},
    "contradiction": {"": 1.0, "cpu": 1.0},
    "silent": {},
}
AT_END: dict[str, dict[str, float]] = {
    "leaves": {"cpu": 1.0},
    "leaves-partly": {"": 0.4, "cpu": 0.6},
    "vanishes": {},
    "contradiction": {"": 1.0, "cpu": 1.0},
}
POLL_S = 0.01


def placement(shares: dict[str, float], device: str) -> dict[str, Any]:
    """Return the fields of a placement; the empty name is the card."""
    parts = [
        {"where": where or device, "share_of_nodes": share, "share_of_time": None} for where, share in shares.items()
    ]
    return {"on_device": None, "parts": parts, "evidence": "The scripted library's count."}


class Worker:
    """Plays a worker with one model."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._cancelled: set[str] = set()
        self._device, self._model = "", Path()

    def serve(self) -> None:
        """Answer orders until stdin ends."""
        self._channel.send({"op": "hello", "wire": WIRE_VERSION, "pid": os.getpid(), "python": "3.12.1"})
        while received := self._channel.receive():
            order = received[0]
            if order["op"] == "cancel":
                self._cancelled.add(order["job"])
            else:
                act = self._load if order["op"] == "load" else self._run
                threading.Thread(target=act, args=(order,), daemon=True).start()

    def _load(self, order: dict[str, Any]) -> None:
        self._device, self._model = order["request"]["device"], Path(order["request"]["model_path"])
        name = self._model.stem
        if name == "dies-loading":
            os._exit(9)
        if name == "no-memory":
            self._fail(None, "out_of_memory", "The model needs 9 GB; 1 GB is free.")
            return
        mark = self._model.with_suffix(".seen")
        if name == "changes" or (name == "changes-once" and not mark.exists()):
            mark.touch()
            self._fail(None, "model_broken", f"{self._model} was replaced while it was loaded.", {CHANGED: name})
            return
        if name == "slow-load":
            self._wait()
        files, stamp = OpenedFiles(self._model).describe(5.0)
        shares = PLACED.get(name, {"": 1.0})
        if name == "first-only" and self._device.endswith(":1"):
            shares = {"cpu": 1.0}
        self._channel.send(
            {
                "op": "loaded",
                "placement": placement(shares, self._device),
                "threads": 1,
                "versions": {"torch": "2.9 of the worker", "python": "3.12.1"},
                "model_file": self._model.name,
                "files": [asdict(file) for file in files],
                "model_stamp": asdict(stamp) if stamp else None,
                "resident_bytes": 1000,
            }
        )

    def _run(self, order: dict[str, Any]) -> None:
        job, request, name = order["job"], order["request"], self._model.stem
        if name == "dies-early":
            os._exit(9)
        self._channel.send({"op": "token", "job": job, "text": f"{self._device} ", "count": 1})
        if name == "dies-late":
            os._exit(9)
        if name == "lost" and self._device.endswith(":0"):
            self._fail(job, "device_lost", "The driver reset the card.")
            return
        if name == "slow":
            self._wait(job)
        if request["folder"] and not self._make_files(job, request):
            return
        at_end = AT_END.get(name)
        self._channel.send(
            {
                "op": "done",
                "job": job,
                "cancelled": job in self._cancelled,
                "counts": {"tokens": 1, "prompt_tokens": 1},
                "finish_reason": "stop",
                "chat_template": None,
                "audio_s": None,
                "phases": {},
                "chosen": {},
                "evidence": "",
                "run_s": 0.5,
                "first_token_s": 0.1,
                "memory": {"before_bytes": 1, "peak_bytes": 2, "after_bytes": 1},
                "placement": None if at_end is None else placement(at_end, self._device),
                "model_stamp": None,
            }
        )

    def _make_files(self, job: str, request: dict[str, Any]) -> bool:
        """Make the variations of this share; the second card is lost after its first one."""
        first, count = request["share"] or (0, request["options"]["variations"])
        box = ArtifactWriter(request["folder"])
        making = Path(box.open())
        for number in range(first, first + count):
            file = f"tune-{number + 1}.txt"
            (making / file).write_text(self._device)
            made = {"name": file, "media_type": "text/plain", "bytes": box.deliver(file)}
            self._channel.send({"op": "artifact", "job": job, **made})
            if self._device.endswith(":1"):
                self._fail(job, "device_lost", "The driver reset the second card.")
                return False
        return True

    def _wait(self, job: str = "") -> None:
        while not self._model.with_suffix(".go").exists() and job not in self._cancelled:
            self._channel.send({"op": "beat", "resident_bytes": 1000})
            time.sleep(POLL_S)

    def _fail(self, job: str | None, code: str, detail: str, extra: dict[str, str] | None = None) -> None:
        frame = {"op": "failed", "job": job, "code": code, "detail": detail, "remedy": "Do something."}
        self._channel.send({**frame, "extra": extra or {}})


def probe(channel: Channel, action: str) -> None:
    """Play the probes: list two cards, or prove one."""
    if action == "prove":
        checks = [{"operation": "MatMul", "dtype": "float32", "max_abs_error": 0.0, "tolerance": 1e-4}]
        proof = Proof("MatMul", "float32", 0.0, 1e-4, 0.1, {}, "2026-01-01T00:00:00.000Z", os.getpid(), checks)
        channel.send({"op": "proved", "proof": asdict(proof), "memory_free_bytes": 10**10})
        channel.send({"op": "engines", "engines": {"transformers": {}, "torch": {}}})
        return
    channel.send({"op": "plan", "backends": ["cuda"]})
    devices = [
        DetectedDevice(
            name=f"Scripted card {number}",
            kind="gpu",
            hardware_id=None,
            memory_bytes=10**10,
            memory_free_bytes=10**10,
            library="torch",
            position=number,
            count=CARDS,
            identity={"uuid": f"GPU-{number}"},
        )
        for number in range(CARDS)
    ]
    listed = {"op": "listed", "backends": ["cuda"], "library": "torch", "versions": {"torch": "2.9 of the probe"}}
    channel.send({**listed, "devices": [asdict(device) for device in devices], "left_out": 0})
    channel.send({"op": "end"})


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    if program == "probe":
        probe(claim_stdio(), rest[0])
    else:
        Worker(claim_stdio()).serve()
