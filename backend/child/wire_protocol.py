"""The protocol between the server and a child process: frames over the child's stdin and stdout.

A frame is: u32 header length, u32 body length (big endian), a JSON object with the key `op`, raw bytes (unused: length
0). Both sides import this file. The limits keep a child that writes garbage from filling the server's memory; a child
trusts its parent, whose frames hold complete prompts. The end of stdin ends a child. The server checks each frame of a
child by its type below and cleans its texts (`ChildProcess`); a frame that fails ends that child alone.

Each program of `backend/child/programs` speaks a part of it. `→` is server to child, `←` is child to server.

| program  | op          | fields                                                                                     |
|----------|-------------|--------------------------------------------------------------------------------------------|
| run      | ← hello     | `HelloFrame`: the first frame                                                              |
|          | → load      | `LoadFrame`: load a model; sent once                                                       |
|          | ← loaded    | `LoadedFrame`                                                                              |
|          | → run       | `RunFrame`: run a job on the loaded model; several may run at once                         |
|          | → cancel    | `CancelFrame`: stop a job, which then sends `done` with `cancelled`                        |
|          | ← beat      | `BeatFrame`: heartbeat, each second: the interpreter is alive                              |
|          | ← progress  | `ProgressFrame`                                                                            |
|          | ← token     | `TokenFrame`: generated text since the last one                                            |
|          | ← artifact  | `ArtifactFrame`: a file is complete in the job's folder                                    |
|          | ← done      | `DoneFrame`: a job's last frame                                                            |
|          | ← failed    | `FailedFrame`: a job's last frame, or the answer to `load`                                 |
| probe    | ← plan      | `PlanFrame`: the first frame of a list                                                     |
|          | ← step      | `StepFrame`: sent before each risky step, so that a crash can be attributed                |
|          | ← listed    | `ListedFrame`                                                                              |
|          | ← absent    | `AbsentFrame`: no device                                                                   |
|          | ← missing   | `RefusalFrame`: an import or a shared library fails                                        |
|          | ← wrong     | `RefusalFrame`: a wrong result                                                             |
|          | ← failed    | `RefusalFrame`: any other exception                                                        |
|          | ← proved    | `ProvedFrame`: sent once                                                                   |
|          | ← engines   | `EnginesFrame`: versions by engine, of those that load so far                              |
|          | ← no_engine | `NoEngineFrame`: an engine that does not load, or that needs an unusable data type         |
|          | ← end       | `EndFrame`: the list is complete                                                           |
|          | → probe     | `arguments`: after `end`, prove a device in the process that listed it                     |
| survey   | ← hardware  | `hardware`: sent after each step, the last one is the most complete                        |
|          | ← system    | `system`: facts for the doctor                                                             |
|          | ← end       | nothing follows                                                                            |
|          | → read      | `quantity, hardware`: of `survey sensors`; free_bytes, energy_j or power_w of a card       |
|          | ← reading   | `value`: None if unknown                                                                   |
| packages | ← packages  | see `programs/packages.py`                                                                 |
| convert  | ← hello     | `HelloFrame`                                                                               |
|          | → check     | `source`: a path                                                                           |
|          | → convert   | `source, model, form, models_dir, python, options`: text options for the comparison       |
|          | ← progress  | `phase, done, total, unit`                                                                 |
|          | ← done      | `path, bytes, comparison`; no fields after `check`                                         |
|          | ← failed    | `code, detail, remedy`                                                                     |

`download` and `install` write lines of JSON instead, see `one_shot.py`; `prove_engine` writes one line of JSON.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import BinaryIO, Literal, TypedDict

from backend.common.device_api import DetectedDevice
from backend.common.engine_api import TokenLogprob
from backend.common.types import JsonObject, MeasuredBuffers, MemoryFit, ModelFile, ModelStamp, Placement, Proof

WIRE_VERSION = 1
HEADER_LIMIT_BYTES = 4 * 1024 * 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024
REQUEST_LIMIT_BYTES = 2**32 - 1  # the largest length; the server's own limits on requests apply before
_LENGTHS = struct.Struct("!II")

Frame = JsonObject  # a frame as it is received: its fields are those of the table, by `op`


class _HelloFrame(TypedDict):
    op: Literal["hello"]
    wire: int


class HelloFrame(_HelloFrame, total=False):
    """The child is ready for orders. `wire` is its WIRE_VERSION."""

    pid: int
    python: str


class LoadFrame(TypedDict):
    """`request` holds the fields of a LoadRequest."""

    op: Literal["load"]
    engine: str
    request: JsonObject


class RunFrame(TypedDict):
    """`job` is the id that later frames repeat, `request` holds the fields of a RunRequest."""

    op: Literal["run"]
    job: str
    request: JsonObject


class CancelFrame(TypedDict):
    """Stop a job as soon as its engine looks."""

    op: Literal["cancel"]
    job: str


class _LoadedFrame(TypedDict):
    op: Literal["loaded"]
    placement: Placement
    threads: int | None
    versions: dict[str, str]
    files: list[ModelFile]
    model_stamp: ModelStamp | None
    resident_bytes: int | None


class LoadedFrame(_LoadedFrame, total=False):
    """`placement`: which share of the model is on which device. Optional: `model_file`, which the child chose.

    Optional: how many jobs the model runs at once, the context of each, how it was fitted into memory, and what its
    buffers took. Default of `slots`: as requested.
    """

    model_file: str | None
    slots: int
    context_tokens: int | None
    fit: MemoryFit | None
    measured: MeasuredBuffers | None


class BeatFrame(TypedDict):
    """A heartbeat. Whether the work advances is seen from the frames of the job."""

    op: Literal["beat"]
    resident_bytes: int | None


class ProgressFrame(TypedDict):
    """`total` is None where it is not known."""

    op: Literal["progress"]
    job: str
    phase: str
    done: float
    total: float | None
    unit: str


class _TokenFrame(TypedDict):
    op: Literal["token"]
    job: str
    text: str
    count: int


class TokenFrame(_TokenFrame, total=False):
    """`count` tokens and their text. Optional: `logprobs`, one entry for each token."""

    logprobs: list[TokenLogprob]


class ArtifactFrame(TypedDict):
    """A file in the job's folder, complete and flushed to disk."""

    op: Literal["artifact"]
    job: str
    name: str
    media_type: str
    bytes: int


class MemoryUse(TypedDict):
    """Memory of the process, or of the card where the engine can measure that."""

    before_bytes: int | None
    peak_bytes: int | None
    after_bytes: int | None


class _ResultFields(TypedDict):
    counts: dict[str, int]
    finish_reason: str
    chat_template: Literal["model", "default"] | None


class ResultFields(_ResultFields, total=False):
    """The fields of a RunResult. The fields of this class are optional."""

    audio_s: float | None
    phases: dict[str, float]
    chosen: JsonObject
    evidence: str


class DoneFrame(ResultFields):
    """The result, and what the worker measured. `placement`: where the model is at the end of the job. Optional."""

    op: Literal["done"]
    job: str
    cancelled: bool
    run_s: float
    first_token_s: float | None
    memory: MemoryUse
    placement: Placement | None
    model_stamp: ModelStamp | None


class _FailedFrame(TypedDict):
    op: Literal["failed"]
    code: str
    detail: str
    remedy: str


class FailedFrame(_FailedFrame, total=False):
    """`code` is one of `backend.common.errors`; `job` is None if loading failed. `extra`: members of the problem."""

    job: str | None
    extra: JsonObject


class PlanFrame(TypedDict):
    """The backends whose library is installed."""

    op: Literal["plan"]
    backends: list[str]


class _StepFrame(TypedDict):
    op: Literal["step"]
    what: str
    backends: list[str]


class StepFrame(_StepFrame, total=False):
    """`what` the child is about to do, for which backends. Optional: the position of the `card` that it describes."""

    card: int


class _ListedFrame(TypedDict):
    op: Literal["listed"]
    backends: list[str]
    versions: dict[str, str]
    devices: list[DetectedDevice]
    left_out: int


class ListedFrame(_ListedFrame, total=False):
    """The devices of a backend through its `library`. `left_out` counts those beyond the last id."""

    library: str


class _AbsentFrame(TypedDict):
    op: Literal["absent"]
    backends: list[str]
    detail: str


class AbsentFrame(_AbsentFrame, total=False):
    """The library works and has no device. Optional `quiet`: no device is expected."""

    quiet: bool


class RefusalFrame(TypedDict):
    """Why a backend's device could not be listed or proved."""

    op: Literal["missing", "wrong", "failed"]
    backends: list[str]
    detail: str


class _ProvedFrame(TypedDict):
    op: Literal["proved"]
    proof: Proof


class ProvedFrame(_ProvedFrame, total=False):
    """The device computed the right result. Optional: its free memory."""

    memory_free_bytes: int | None


class EnginesFrame(TypedDict):
    """The versions of packages by engine."""

    op: Literal["engines"]
    engines: dict[str, dict[str, str]]


class _NoEngineFrame(TypedDict):
    op: Literal["no_engine"]
    engine: str
    detail: str


class NoEngineFrame(_NoEngineFrame, total=False):
    """An engine that cannot be used, and why: it does not load, or the device does not compute `data_type` right."""

    data_type: str | None


class EndFrame(TypedDict):
    """The list is complete."""

    op: Literal["end"]


class WireError(Exception):
    """The bytes received are not a frame of this protocol."""


class Channel:
    """One end of the connection. `send` may be called from any thread, `receive` from one."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO, header_limit_bytes: int = HEADER_LIMIT_BYTES) -> None:
        self._header_limit_bytes = header_limit_bytes
        self._reader = reader
        self._writer = writer
        self._sending = threading.Lock()

    def send(self, header: Mapping[str, object], body: bytes = b"") -> None:
        """Write one frame. Raises OSError if the other side is gone."""
        self.write(encode_frame(header, body))

    def send_all(self, headers: Iterable[Mapping[str, object]]) -> None:
        """Write several frames in one system call, which wakes the other side once. Raises OSError."""
        self.write(b"".join(encode_frame(header) for header in headers))

    def write(self, frames: bytes) -> None:
        """Write encoded frames. Raises OSError."""
        with self._sending:
            self._writer.write(frames)
            self._writer.flush()

    def receive(self) -> tuple[Frame, bytes] | None:
        """Return the next header and body, or None at the end of the stream. Raises WireError, OSError."""
        received = self.receive_bytes()
        return (decode_header(received[0]), received[1]) if received else None

    def receive_bytes(self) -> tuple[bytes, bytes] | None:
        """Return the next header, not decoded, and body. None at the end of the stream. Raises WireError, OSError."""
        lengths = self._reader.read(_LENGTHS.size)
        if not lengths:
            return None
        if len(lengths) < _LENGTHS.size:
            raise WireError("the stream ended inside a frame")
        header_size, body_size = _LENGTHS.unpack(lengths)
        if header_size > self._header_limit_bytes or body_size > BODY_LIMIT_BYTES:
            if lengths.isascii() and lengths.decode().replace("\n", " ").isprintable():
                raise WireError(f"it prints text instead of a frame: {lengths.decode()!r}…")
            raise WireError(f"a frame claims {header_size} + {body_size} bytes: not this protocol")
        text, body = self._reader.read(header_size), self._reader.read(body_size)
        if len(text) < header_size or len(body) < body_size:
            raise WireError("the stream ended inside a frame")
        return text, body


def decode_header(text: bytes) -> Frame:
    """Return the header of a frame. Raises WireError."""
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header of a frame is not JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("op"), str):
        raise WireError("the header of a frame has no op")
    return header


def encode_frame(header: Mapping[str, object], body: bytes = b"") -> bytes:
    """Return one frame as bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def claim_stdio() -> Channel:
    """Return a channel over fds 0 and 1, and point fd 1 at stderr, so that no library's print reaches the frames.

    Must run before any other import of the child.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(incoming, os.O_BINARY)
        msvcrt.setmode(outgoing, os.O_BINARY)
    return Channel(os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb"), REQUEST_LIMIT_BYTES)
