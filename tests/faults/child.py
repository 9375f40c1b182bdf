"""A child that plays one fault: `python child.py FAULT run|probe …`. It knows the wire and nothing of the tests.

Faults of a worker: ok, dies_at_start, dies_loading, dies_running, silent_start, silent_loading, silent_running, stuck
(beats but makes no step), deaf (does not stop when told), first_deaf (its first job alone does not), nonsense,
half_frame, slow_loading, old_wire, floods, noisy, no_memory, sees_change (of a file while it loads),
elsewhere (its evidence names another device), no_evidence, device_lost. `DEVICE=FAULT,…` plays one on each device, on
others ok. A job that has a folder gets a file for each of its variations, which holds the device's name.
Faults of a probe: dies_listing, dies_proving, hangs_listing, hangs_proving, wrong, no_engine, exits_silently, chatty,
slow_engines (longer than a limit in all, though no step is), hangs_engine.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backend.child.artifact_writer import ArtifactWriter  # noqa: E402
from backend.child.model_files import CHANGED, OpenedFiles  # noqa: E402
from backend.child.wire_protocol import WIRE_VERSION, Channel, claim_stdio  # noqa: E402

FOREVER_S = 3600.0
SLOW_S = 1.5
MISSING = "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory"


def die() -> None:
    """Ends as a segmentation fault does."""
    print("E driver: page fault at address 0x0", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(FOREVER_S)  # the signal may reach another thread first


def worker(fault: str, channel: Channel) -> None:
    """Plays a worker."""
    if fault == "dies_at_start":
        die()
    if fault == "silent_start":
        time.sleep(FOREVER_S)
    if fault == "noisy":
        print("hello from a library", flush=True)
        os.write(1, b"and from its C half\n")
    channel.send({"op": "hello", "wire": 999 if fault == "old_wire" else WIRE_VERSION, "pid": os.getpid()})
    if not fault.startswith("silent"):
        threading.Thread(target=beat, args=(channel,), daemon=True).start()
    cancelled: set[str] = set()
    first: str | None = None
    device = ""
    while received := channel.receive():
        order = received[0]
        if order["op"] == "load":
            device = order["request"]["device"]
            if "=" in fault:
                fault = dict(one.split("=") for one in fault.split(",")).get(device, "ok")
            load(fault, channel, device, Path(order["request"]["model_path"]))
        elif order["op"] == "run":
            first = first or order["job"]
            arguments = (fault, channel, order["job"], cancelled, {**order["request"], "device": device})
            threading.Thread(target=run, args=arguments, daemon=True).start()
        elif order["op"] == "cancel" and fault != "deaf" and not (fault == "first_deaf" and order["job"] == first):
            cancelled.add(order["job"])


def beat(channel: Channel) -> None:
    """Says that the interpreter lives."""
    while True:
        channel.send({"op": "beat", "resident_bytes": 1000})
        time.sleep(0.05)


def fail(channel: Channel, job: str | None, code: str, detail: str) -> None:
    """Reports a failure in the wire's words."""
    channel.send({"op": "failed", "job": job, "code": code, "detail": detail, "remedy": "Do something.", "extra": {}})


def load(fault: str, channel: Channel, device: str, model: Path) -> None:
    """Loads nothing, and says so truly or not."""
    files, stamp = OpenedFiles(model).describe(1.0)
    if fault == "sees_change":
        detail = {"code": "model_broken", "detail": f"{model} was replaced.", "remedy": "Wait.", "extra": {CHANGED: ""}}
        channel.send({"op": "failed", "job": None, **detail})
        return
    if fault == "dies_loading":
        die()
    if fault == "silent_loading":
        time.sleep(FOREVER_S)
    if fault == "slow_loading":
        time.sleep(0.3)
    if fault == "no_memory":
        fail(channel, None, "out_of_memory", "The model needs 9 GB and 1 GB is free.")
        return
    where = "cpu" if fault == "elsewhere" else device
    parts: list[dict[str, Any]] = [] if fault == "no_evidence" else [{"where": where, "share_of_nodes": 1.0}]
    channel.send(
        {
            "op": "loaded",
            "placement": {"on_device": None, "parts": parts, "evidence": "the child's own word"},
            "threads": 1,
            "versions": {},
            "model_file": model.name,
            "files": [asdict(file) for file in files],
            "model_stamp": asdict(stamp) if stamp else None,
            "resident_bytes": 2,
        }
    )


def make(channel: Channel, job: str, request: dict[str, Any], numbers: range) -> None:
    """Makes these variations, each a file, and tells how far it is."""
    first, count = request["share"] or (0, request["options"]["variations"])
    box = ArtifactWriter(request["folder"])
    making = Path(box.open())
    for number in numbers[: count - numbers.start] if numbers.start < count else ():
        name = f"tune-{first + number + 1}.txt"
        (making / name).write_text(request["device"])
        channel.send(
            {"op": "artifact", "job": job, "name": name, "media_type": "text/plain", "bytes": box.deliver(name)}
        )
        step = {"phase": "making", "done": number + 1, "total": count, "unit": "files"}
        channel.send({"op": "progress", "job": job, **step})


def run(fault: str, channel: Channel, job: str, cancelled: set[str], request: dict[str, Any]) -> None:
    """Sends tokens, and makes files, until the fault strikes or the job is cancelled."""
    channel.send({"op": "started", "job": job})
    count = 100_000 if fault == "floods" else 1_000_000 if fault.endswith("deaf") else 5
    for number in range(count):
        if job in cancelled:
            break
        channel.send({"op": "token", "job": job, "text": "x", "count": 1})
        if request["folder"] and number in (1, 3):  # before the fault, and after it
            make(channel, job, request, range(1) if number == 1 else range(1, 100))
        if number == 2:
            strike(fault, channel, job)
        if fault.endswith("deaf"):
            time.sleep(0.01)
    channel.send(
        {
            "op": "done",
            "job": job,
            "cancelled": job in cancelled,
            "counts": {"tokens": count},
            "finish_reason": "stop",
            "chat_template": None,
            "run_s": 1.0,
            "first_token_s": 0.5,
            "memory": {"before_bytes": 1, "peak_bytes": 2, "after_bytes": 1},
            "placement": None,
            "model_stamp": None,
        }
    )


def strike(fault: str, channel: Channel, job: str) -> None:
    """What goes wrong in the middle of a job."""
    if fault == "dies_running":
        die()
    elif fault in ("silent_running", "stuck"):
        if fault == "silent_running":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(FOREVER_S)
    elif fault == "nonsense":
        channel._writer.write(b"Segmentation fault (not really)\n" * 100)
        channel._writer.flush()
    elif fault == "half_frame":
        channel._writer.write(b"\0\0\0\xff\0\0\0\0{")
        channel._writer.flush()
        os._exit(0)
    elif fault == "device_lost":
        fail(channel, job, "device_lost", "The driver reset the device.")


def probe(fault: str, channel: Channel, action: str) -> None:
    """Plays a probe of a runtime with one device."""
    if fault == "exits_silently":
        sys.exit(0)
    if action == "list":
        listing(fault, channel)
        return
    channel.send({"op": "step", "what": "computing on cpu", "backends": ["cpu"]})
    if fault == "dies_proving":
        die()
    if fault == "hangs_proving":
        time.sleep(FOREVER_S)
    if fault == "wrong":
        channel.send({"op": "wrong", "backends": ["cpu"], "detail": "a product was off by up to 3 (allowed 0.0001)"})
        return
    if fault == "chatty":
        print("[31mINFO[0m: 1000 devices found, all fine", flush=True)
    proof = {"operation": "MatMul", "dtype": "float32", "max_abs_error": 0.0, "tolerance": 1e-4, "seconds": 0.1}
    channel.send({"op": "proved", "proof": {**proof, "versions": {}, "at": "2026-01-01T00:00:00Z", "pid": os.getpid()}})
    libraries(fault, channel)


def listing(fault: str, channel: Channel) -> None:
    """The round before: which devices there are."""
    channel.send({"op": "plan", "backends": ["cpu"]})
    channel.send({"op": "step", "what": "listing cpu devices", "backends": ["cpu"]})
    if fault == "dies_listing":
        die()
    if fault == "hangs_listing":
        time.sleep(FOREVER_S)
    found = {"name": "Fake", "kind": "cpu", "hardware_id": "cpu:0", "memory_bytes": None, "memory_free_bytes": None}
    channel.send({"op": "listed", "backends": ["cpu"], "versions": {}, "left_out": 0, "devices": [found]})
    channel.send({"op": "end"})


def libraries(fault: str, channel: Channel) -> None:
    """What comes after the proof: one engine after the other."""
    if fault == "slow_engines":
        for _ in range(2):
            time.sleep(SLOW_S)
            channel.send({"op": "engines", "engines": {}})
    if fault == "no_engine":
        channel.send({"op": "no_engine", "engine": "llama.cpp", "detail": MISSING})
    channel.send({"op": "engines", "engines": {} if fault == "no_engine" else {"llama.cpp": {}}})
    if fault == "hangs_engine":
        channel.send({"op": "step", "what": "loading another", "backends": ["cpu"]})
        time.sleep(FOREVER_S)


if __name__ == "__main__":
    fault_, program, *rest = sys.argv[1:]
    if program == "survey":
        sys.exit(0)
    if program == "probe":
        probe(fault_, claim_stdio(), rest[0])
    else:
        worker(fault_, claim_stdio())
