"""Isolation: one child may send anything at any time. Its device or job ends with a reason; nothing else changes."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from backend.child.handle import Spawn
from backend.child.install.orders import LockResult
from backend.child.one_shot import run_one_shot
from backend.cli.doctor.runtimes import runtime_facts
from backend.common.config.settings import load_settings
from backend.common.errors import TouchstoneError, WorkerCrashed
from backend.common.types import Device, Hardware
from backend.engines import LoadRequest, RunRequest
from backend.jobs.receipt import ReceiptBuilder
from backend.jobs.worker_events import JobSink, WorkerEventHandler
from backend.manager import ModelManager
from backend.models import conversion
from backend.scheduling.device_queue import DeviceQueue
from backend.scheduling.device_resolution import Resolution
from backend.scheduling.probing import ProbeService
from backend.scheduling.probing.classification import proved, refused
from backend.scheduling.probing.device_table import RuntimeProblem
from backend.scheduling.probing.enumeration import Enumerator
from backend.scheduling.probing.inventory import query_hardware, query_system
from backend.scheduling.probing.prober import Outcome, Prober
from backend.scheduling.worker import Limits, Worker, WorkerKey
from backend.server.app import create_app
from tests.scripted_child import ScriptedProcess, frame, playing, scripts_instead_of_processes

GGUF = Path(__file__).parent / "cases" / "gguf" / "tiny_no_template.gguf"
FRAMES = 10_000
LIMIT_S = 20.0  # of one child; each script ends at once
Json = dict[str, Any]

PROOF: Json = {
    **{"operation": "MatMul", "dtype": "float32", "max_abs_error": 0.0, "tolerance": 1e-4, "seconds": 0.1},
    **{"versions": {"torch": "2"}, "at": "2026-01-01T00:00:00Z", "pid": 1, "checks": []},
}
CARD: Json = {
    **{"name": "A card", "kind": "cpu", "hardware_id": "cpu:0", "memory_bytes": 1, "memory_free_bytes": None},
    **{"library": "xllamacpp", "position": 0, "count": 1, "identity": {}},
}
STEP: Json = {"op": "step", "what": "computing", "backends": ["cpu"]}
LISTED: Json = {"op": "listed", "backends": ["cpu"], "library": "x", "versions": {}, "devices": [CARD], "left_out": 0}
LIST: list[Json] = [{"op": "plan", "backends": ["cpu"]}, STEP, LISTED, {"op": "end"}]
PROVED: Json = {"op": "proved", "proof": PROOF, "memory_free_bytes": 5}
PROVE: list[Json] = [STEP, PROVED, {"op": "engines", "engines": {"llama.cpp": {}}}]
HARDWARE = [{"op": "hardware", "hardware": [{"id": "cpu:0", "name": "A processor", "vendor": None, "kind": "cpu"}]}]
CHECK = {"code": "a", "layer": "driver", "verdict": "ok", "detail": "It works."}
SYSTEM: list[Json] = [
    *HARDWARE,
    {"op": "system", "system": {"name": "L", "kernel": "6", "machine": "x86_64", "checks": [CHECK]}},
]
PACKAGES: list[Json] = [
    {
        **{"op": "packages", "packages": {"numpy": "2"}, "shared": {}, "on_disk": {}, "builds": {}, "unmet": []},
        "leftovers": [],
        "interpreter": {"version": "3", "bits": 64, "path": "/p", "base": "/p", "venv": True, "platform": "linux"},
    }
]
FAILED: Json = {
    "op": "failed",
    "job": None,
    "code": "model_broken",
    "detail": "It is.",
    "remedy": "Do.",
    "extra": {"a": 1},
}
COUNTS = ("prompts", "tokens", "tokens_alike", "first_alike", "texts_alike", "prompts_tokenized_alike")
CONVERT: list[Json] = [
    {"op": "hello", "wire": 1, "pid": 1, "python": "3"},
    {"op": "progress", "phase": "a", "done": 1, "total": None, "unit": "bytes"},
    {"op": "done", "path": "/m", "bytes": 3, "comparison": {**dict.fromkeys(COUNTS, 1), "differences": []}},
    FAILED,
]
LINES: list[Json] = [
    {"phase": "a", "done": 1, "total": 2},
    {"error": {"code": "disk_full", "detail": "It is.", "remedy": "Do."}},
    {"ok": True, "lock": "x", "python": "/p", "extra": False},
]
PART = {"where": "cpu", "share_of_nodes": 1.0, "share_of_time": None}
LOADED: Json = {
    **{"op": "loaded", "placement": {"on_device": None, "parts": [PART], "evidence": "e"}, "threads": 1},
    **{"versions": {}, "model_file": None, "files": [], "model_stamp": None, "resident_bytes": 5},
}
LOAD: list[Json] = [{"op": "hello", "wire": 1, "pid": 1, "python": "3"}, {"op": "beat", "resident_bytes": 5}, LOADED]
DONE: Json = {
    **{"op": "done", "job": "j", "cancelled": False, "counts": {"tokens": 1}, "finish_reason": "stop", "run_s": 1.0},
    **{"chat_template": None, "first_token_s": 0.1, "placement": None, "model_stamp": None},
    "memory": {"before_bytes": 1, "peak_bytes": 2, "after_bytes": 1},
}
RUN: list[Json] = [
    {"op": "token", "job": "j", "text": "سلام\u200c👩\u200d🚀", "count": 1},
    {"op": "progress", "job": "j", "phase": "a", "done": 1, "total": 2, "unit": "tokens"},
    {"op": "artifact", "job": "j", "name": "a.txt", "media_type": "text/plain", "bytes": 1},
    {**FAILED, "job": "j"},
    DONE,
]
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, float("nan"), float("-inf"), 10**30, -(10**300), "", "x" * 5000, "\ud800", "a\udcffb"),
    *(
        "\u202egnp.exe",
        "\U000e0041\ufe0f",
        "\x1b[31m\x00",
        [],
        {},
        [[]],
        {"op": "end"},
        ["cpu", 3],
        {"\udc80": "\ud800"},
    ),
    *(
        ["nowhere"],
        [None] * 70,
        {"a": {"b": {"c": {}}}},
        "../../etc/passwd",
        "cpu",
        "cuda",
        "job_cancelled",
        "unauthorized",
    ),
)


def changed(value: Any, chance: random.Random) -> Any:
    """Return JSON with one place changed: a value, a key, an entry more or less."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        rest = {name: inner for name, inner in value.items() if name != key}
        step = chance.randrange(5)
        if step == 0:
            return rest
        if step == 1:
            return {**value, chance.choice(("later", "\ud800", "op", "detail")): chance.choice(JUNK)}
        return {**rest, key: changed(value[key], chance)} if step > 2 else {**rest, str(key) + "x": value[key]}
    if isinstance(value, list) and value and chance.random() < 0.8:
        index = chance.randrange(len(value))
        return value[:index] + [changed(value[index], chance)] * chance.randrange(3) + value[index + 1 :]
    return chance.choice(JUNK)


def encoded(header: Any, chance: random.Random) -> bytes:
    """Return a frame, sometimes in another encoding, cut, with a false length, or nested a thousand times."""
    text, step = json.dumps(header), chance.randrange(24)
    if step == 0:
        text = "[" * 5000
    data = text.encode("utf-16") if step == 1 else text.encode("utf-8", "surrogatepass")
    if step == 2:
        data = data.replace(b'"', b"'")
    if step == 3:
        data = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if step == 4:
        data = data.replace(b": ", b": 1e999, ", 1) if chance.random() < 0.5 else data + b"\xff\xfe"
    whole = struct.pack("!II", len(data), 0) + data
    if step == 5:
        return whole[: chance.randrange(len(whole))]
    if step == 6:
        return struct.pack("!II", chance.choice((0, 1, len(data) + 9, 2**31)), chance.choice((0, 5, 2**31))) + data
    return chance.randbytes(40) if step == 7 else whole


def script(valid: list[Json], chance: random.Random) -> tuple[bytes, int]:
    """Return what a child sends, and how many frames: changed, doubled, left out, in another order, or as they are."""
    headers: list[Any] = list(valid)
    for _ in range(chance.randrange(3)):
        index, step = chance.randrange(len(headers)), chance.randrange(5)
        if step == 0:
            headers.insert(index, headers[chance.randrange(len(headers))])
        elif step == 1 and len(headers) > 1:
            del headers[index]
        elif step == 2:
            chance.shuffle(headers)
        else:
            headers[index] = changed(headers[index], chance)
    odd = chance.randrange(len(headers) * 3)
    parts = [encoded(header, chance) if index == odd else frame(header) for index, header in enumerate(headers)]
    return b"".join(parts), len(parts)


def is_sendable(value: Any) -> bool:
    """Return whether it can be sent as JSON in UTF-8. Raises what the encoder raises."""
    return bool(json.dumps(value, ensure_ascii=False, allow_nan=False, default=asdict).encode())


async def read_list(spawn: Spawn) -> Any:
    listing = Enumerator(Prober(spawn, LIMIT_S, 2), "python", "base")
    await listing.run()
    answers = listing.answers.values()
    devices = [asdict(device) for answer in answers for device in answer.devices]
    return devices, [asdict(refused(card(), answer.outcome, answer.refusal)) for answer in answers]


async def read_proof(spawn: Spawn) -> Any:
    outcome = await Prober(spawn, LIMIT_S, 2).run("python", ["prove", "{}"])
    device = proved(card(), "base", outcome)
    assert device.state in ("ready", "broken", "unavailable") and (device.state == "ready") == (device.reason is None)
    return asdict(device)


async def read_hardware(spawn: Spawn) -> Any:
    found = await query_hardware(spawn, LIMIT_S)
    assert all(isinstance(item, Hardware) for item in found)
    return [asdict(item) for item in found]


async def read_system(spawn: Spawn) -> Any:
    system = await query_system(spawn, LIMIT_S)
    return asdict(system) if system else None


async def read_packages(spawn: Spawn) -> Any:
    return [asdict(facts) for facts in await runtime_facts({"base": "python"}, spawn, LIMIT_S)]


async def nothing(*_: object) -> None:
    """Ignore progress."""


async def read_conversion(spawn: Spawn) -> Any:
    return await conversion._run({"op": "convert"}, nothing, spawn)


async def read_lines(spawn: Spawn) -> Any:
    result = await run_one_shot(spawn, ["install", "lock"], b"{}\n", nothing, result=LockResult)
    return {key: value for key, value in result.items() if key not in ("lock", "path", "python")}  # exact: of files


def worker(spawn: Spawn) -> Worker:
    limits = Limits(silence_s=LIMIT_S, load_s=LIMIT_S, step_s=LIMIT_S, cancel_s=1)
    return Worker(WorkerKey("cpu", "base", "llama.cpp", "m"), "python", limits, spawn)


async def read_load(spawn: Spawn) -> Any:
    subject = worker(spawn)
    try:
        return asdict(await subject.load("llama.cpp", LoadRequest("cpu", "m.gguf", 64, 1)))
    finally:
        await subject.close()


async def read_run(spawn: Spawn) -> Any:
    """Run a job: the frames of the load come first, those of the script once the job is there."""
    process: list[ScriptedProcess] = []

    def start(python: str, arguments: list[str]) -> Any:
        process.append(ScriptedProcess(b"".join(map(frame, LOAD)), stays=True))
        return process[0]

    subject = worker(start)
    script_ = cast(ScriptedProcess, spawn("", []))
    await subject.load("llama.cpp", LoadRequest("cpu", "m.gguf", 64, 1))
    run = subject.run("j", RunRequest(None, "Hi", {}, 1, False), asyncio.Event())
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(0)
    data = await asyncio.to_thread(script_.stdout.read)
    for pipe in (script_.stdin, script_.stdout, script_.stderr):
        pipe.close()
    await asyncio.to_thread(process[0].write, data, True)
    sink = Sink()
    handler = WorkerEventHandler(cast(JobSink, sink), ReceiptBuilder("cpu", Resolution("cpu", "It was asked."), 1.0))
    try:
        await handler.handle(await first)
        async for each in run:
            await handler.handle(each)
    finally:
        await run.aclose()
        await subject.close()
    return sink.events, handler._receipt.build(2.0, None)


class Sink:
    """A job that keeps its events."""

    id, task, progress, finish_reason = "j", "text", None, None

    def __init__(self) -> None:
        self.events: list[object] = []

    async def emit(self, event: str, data: object) -> None:
        """Keep an event."""
        self.events.append(data)

    async def flush(self) -> None:
        """Do nothing."""


READERS: dict[str, tuple[Callable[[Spawn], Awaitable[Any]], list[Json]]] = {
    "list": (read_list, LIST),
    "proof": (read_proof, PROVE),
    "hardware": (read_hardware, HARDWARE),
    "system": (read_system, SYSTEM),
    "packages": (read_packages, PACKAGES),
    "conversion": (read_conversion, CONVERT),
    "lines": (read_lines, LINES),
    "load": (read_load, LOAD),
    "run": (read_run, RUN),
}


def card() -> Device:
    return Device("cpu", "CPU", "cpu", "cpu", "probing", reason="It is checked.", remedy="Wait.")


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """Exceptions that escaped into a thread."""
    escaped: list[str] = []
    before, threading.excepthook = threading.excepthook, lambda args: escaped.append(repr(args.exc_value))
    yield escaped
    threading.excepthook = before


@pytest.mark.parametrize("name", READERS)
def test_any_frames_end_in_a_result_or_a_stated_error(name: str, faults: list[str]) -> None:
    read, valid = READERS[name]
    chance = random.Random(f"frames of {name}")
    outcomes: dict[str, int] = {}

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
        sent = 0
        while sent < FRAMES / len(READERS):
            data, count = script(valid, chance)
            sent += count
            if name == "lines":
                data = as_lines(data)
            try:
                async with asyncio.timeout(LIMIT_S):
                    assert is_sendable(await read(playing(data)))
                outcome = "a result"
            except TouchstoneError as error:
                assert is_sendable(asdict(error.problem()) | {"extra": error.extra})
                outcome = error.code
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    with scripts_instead_of_processes():
        asyncio.run(play())
    assert not faults
    assert outcomes["a result"] > 20, outcomes  # frames as they should be are among them


def as_lines(frames: bytes) -> bytes:
    """Return frames as lines of JSON."""
    lines, left = [], frames
    while len(left) > 8:
        size = struct.unpack("!I", left[:4])[0]
        lines.append(left[8 : 8 + size].replace(b"\n", b" "))
        left = left[8 + size :]
    return b"\n".join(lines) + b"\n"


SOUND = b"".join(map(frame, LIST)), b"".join(map(frame, PROVE))


async def known_hardware(_: Spawn) -> list[Hardware]:
    return []


def round_of(spawn: Spawn, runtimes: tuple[str, ...] = ("sick", "sound")) -> ProbeService:
    """Return the service after a round with these runtimes; `python` of each is its name."""
    probes = ProbeService({name: name for name in runtimes}, LIMIT_S, spawn, DeviceQueue, inventory=known_hardware)
    asyncio.run(probes.probe())
    return probes


def sick_and_sound(listed: bytes, proof: bytes) -> Spawn:
    """Return a Spawn whose children of the runtime `sick` send these frames; those of others are sound."""

    def spawn(python: str, arguments: list[str]) -> Any:
        outputs = (listed, proof) if python == "sick" else SOUND
        return ScriptedProcess(outputs[arguments[1] == "prove"])

    return spawn


def test_a_round_with_random_frames_leaves_the_other_runtime_and_the_cpu() -> None:
    chance = random.Random("rounds")
    with scripts_instead_of_processes():
        for number in range(60):
            listed = script(LIST, chance)[0] if number % 2 else SOUND[0]
            probes = round_of(sick_and_sound(listed, script(PROVE, chance)[0]))
            assert probes.devices["cpu"].state == "ready", number
            sound = probes.table.report("sound", "cpu")
            assert sound and sound.state == "ready"
            assert is_sendable([asdict(device) for device in probes.devices.values()])
            assert not any(device.state == "probing" for device in probes.devices.values())


def test_the_reason_names_the_frame_and_the_key() -> None:
    with scripts_instead_of_processes():
        probes = round_of(sick_and_sound(SOUND[0], frame(STEP) + frame({"op": "proved"})), ("sick",))
    device = probes.table.report("sick", "cpu")
    assert (
        device
        and device.state == "broken"
        and "it sent an invalid frame (`proved` has no `proof`)" in str(device.reason)
    )
    assert "Restart the server" in str(device.remedy) and device.layer == "runtime package"


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([PROVED, PROVED], "`proved` came twice"),
        ([{"op": "engines", "engines": {}}], "`engines` came before `proved`"),
        ([{"op": "wrong", "backends": ["cpu"], "detail": "off"}, PROVED], "Wrong result: off"),
        ([{**PROVED, "proof": {**PROOF, "max_abs_error": 1.0}}], "above its tolerance"),
        ([{**STEP, "backends": ["nowhere"]}], "the unknown backend 'nowhere'"),
        ([STEP] * 1001, "more than 1000"),
    ],
)
def test_frames_that_contradict_each_other_are_not_believed(frames: list[Json], why: str) -> None:
    with scripts_instead_of_processes():
        probes = round_of(sick_and_sound(SOUND[0], b"".join(map(frame, frames))), ("sick",))
    device = probes.table.report("sick", "cpu")
    assert device and device.state == "broken" and why in str(device.reason)


@pytest.mark.parametrize(
    "error", [ValueError("embedded null byte"), MemoryError(), RuntimeError("can't start new thread")]
)
def test_a_child_that_cannot_be_started_is_the_problem_of_its_runtime(error: Exception) -> None:
    def spawn(python: str, arguments: list[str]) -> Any:
        if python == "sick":
            raise error
        return ScriptedProcess(SOUND[arguments[1] == "prove"])

    with scripts_instead_of_processes():
        probes = round_of(spawn)
    assert probes.devices["cpu"].state == "ready"
    assert type(error).__name__ in probes.table.runtime_problems["sick"].detail


def test_a_server_without_threads_ends_the_child_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ScriptedProcess] = []

    def spawn(python: str, arguments: list[str]) -> Any:
        made.append(ScriptedProcess(stays=True))
        return made[-1]

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with scripts_instead_of_processes():
        monkeypatch.setattr("backend.child.handle.threading.Thread.start", refuse)
        probes = round_of(spawn, ("sick",))
    assert "no thread" in probes.table.runtime_problems["sick"].detail
    assert all(process.over.is_set() and process.stdout.closed for process in made)


def test_an_exception_while_one_device_is_judged_breaks_that_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(device: Device, runtime: str, outcome: Outcome) -> Device:
        if runtime == "sick":
            raise KeyError("of a bug")
        return proved(device, runtime, outcome)

    monkeypatch.setattr("backend.scheduling.probing.proved", judge)
    with scripts_instead_of_processes():
        probes = round_of(sick_and_sound(*SOUND))
    sick, sound = probes.table.report("sick", "cpu"), probes.table.report("sound", "cpu")
    assert sick and sick.state == "broken" and "KeyError: 'of a bug'" in str(sick.reason)
    assert sound and sound.state == "ready"


def test_a_job_whose_worker_sends_a_wrong_frame_ends_with_the_reason() -> None:
    with scripts_instead_of_processes(), pytest.raises(WorkerCrashed, match="`token` has no `text`"):
        asyncio.run(cast(Any, read_run(playing(frame({"op": "token", "job": "j", "count": 1})))))


def test_a_lone_surrogate_anywhere_is_never_a_500(tmp_path: Path) -> None:
    odd = "odd \ud83d\udcff"
    config = tmp_path / "config.yaml"
    config.write_text(f"models: {{tiny: {{path: '{GGUF}'}}}}\nstorage: {{data_dir: data}}\n")
    manager = ModelManager(load_settings({"config": str(config)}, {}))
    table = manager.directory.probes.table
    fields: Json = {"backend": "vulkan", "kind": "gpu", "state": "broken", "versions": {odd: odd}, "hardware_id": odd}
    table.set_device("base", Device("vulkan:0", odd, **fields, reason=odd, remedy=odd))
    table.surveyed[odd] = Hardware(odd, odd, odd, "gpu", driver=odd, hidden_by=[odd])
    table.runtime_problems["mine"] = RuntimeProblem(odd, odd)
    client = TestClient(create_app(manager), base_url="http://127.0.0.1")
    answers = {route: client.get(route) for route in ("/api/devices", "/api/health", "/api/models", "/api/runtimes")}
    assert {route: answer.status_code for route, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert "odd \\\\ud83d\\\\udcff" in answers["/api/devices"].text
