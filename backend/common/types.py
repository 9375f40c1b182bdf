"""The contract's types as plain dataclasses, shared by server, child processes, command line and HTTP.

Standard library only and Python 3.10 syntax, because the interpreters of runtimes import this module. Units: seconds
(float), bytes (int), timestamps ISO 8601 UTC. Fields that may be None are optional: an unknown fact is None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal

JsonObject = dict[str, Any]  # a JSON object as it is sent, received or stored
DeviceKind = Literal["cpu", "gpu", "integrated", "npu", "emulated"]
DeviceState = Literal["ready", "probing", "installable", "unavailable", "broken", "quarantined"]
Stage = Literal["none", "installed", "visible", "runs", "measured"]
ModelState = Literal["ready", "downloadable", "downloading", "broken"]
JobStatus = Literal["queued", "loading", "running", "done", "error", "cancelled", "interrupted"]
Fallback = Literal["cpu", "any", "never"]

ACTIVE: tuple[JobStatus, ...] = ("queued", "loading", "running")
TERMINAL: tuple[JobStatus, ...] = ("done", "error", "cancelled", "interrupted")
MAINTENANCE = ("download", "load", "unload", "convert", "install", "verify", "update", "bench")
EVENTS = ("queued", "loading", "running", "progress", "token", "fallback", "artifact", *TERMINAL)


@dataclass(frozen=True)
class Proof:
    """What a child process computed to prove a device, and the difference from the reference.

    `max_abs_error` and `tolerance` are those of the entry closest to its tolerance. `checks` lists all operations as
    `{operation, dtype, max_abs_error, tolerance}`, `{operation, dtype, failed}` with what was wrong, or
    `{operation, dtype, skipped}` with the library's reason. `evidence`: optional, how data placement was checked.
    `gflops`: optional, rate of a float32 matrix product. `unusable`: data types that the device computes wrongly or not
    at all, each with a sentence; engines that need one are not offered. `model_dtype`: optional, the data type that
    torch's models compute in there.
    """

    operation: str
    dtype: str
    max_abs_error: float
    tolerance: float
    seconds: float
    versions: dict[str, str]
    at: str
    pid: int
    checks: list[JsonObject] = field(default_factory=list)
    evidence: str | None = None
    gflops: float | None = None
    unusable: dict[str, str] = field(default_factory=dict)
    model_dtype: str | None = None


@dataclass(frozen=True)
class Speed:
    """A median measured on this machine for one model and engine, with quartiles. `together`: rate of all `streams`."""

    model: str
    engine: str
    value: float
    unit: str
    at: str
    low: float | None = None
    high: float | None = None
    streams: int | None = None
    together: float | None = None


@dataclass(frozen=True)
class Device:
    """One usable target. It is `ready` exactly when `proof` is set and `reason` is None."""

    id: str
    name: str
    backend: str
    kind: DeviceKind
    state: DeviceState
    stage: Stage = "none"
    runtimes: list[str] = field(default_factory=list)
    reason: str | None = None
    remedy: str | None = None
    hardware_id: str | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    proof: Proof | None = None
    speed: list[Speed] = field(default_factory=list)
    quarantined_models: list[str] = field(default_factory=list)
    layer: str | None = None  # what failed: hardware, driver, runtime package, library load, computation or permission
    note: str | None = None  # optional, a remark on a device that works
    served_by: dict[str, list[str]] = field(default_factory=dict)  # engines by runtime
    lacks: dict[str, str] = field(default_factory=dict)  # engines that a runtime lacks, with reason and remedy


@dataclass(frozen=True)
class Hardware:
    """A piece of hardware that the system reports. Each has one job queue."""

    id: str
    name: str
    vendor: str | None
    kind: DeviceKind
    memory_bytes: int | None = None
    driver: str | None = None  # name and version
    devices: list[str] = field(default_factory=list)
    reason: str | None = None  # why it is unusable: no driver, no permission, emulated
    remedy: str | None = None
    memory_shared_bytes: int | None = None  # host memory that it may use
    driver_date: str | None = None  # YYYY-MM-DD
    pci_ids: str | None = None  # "1002:744c"
    architecture: str | None = None  # "gfx1100" of AMD, "sm_90" of NVIDIA
    uuid: str | None = None
    luid: str | None = None
    render_node: str | None = None  # "/dev/dri/renderD128"
    hidden_by: list[str] = field(default_factory=list)  # sentences: which variable hides it from which libraries
    cores: int | None = None  # processor cores
    threads: int | None = None
    instructions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MissingDevice:
    """Why a card has no ready device. `hardware_id` is None if the system does not show such a card.

    `bus`, `driver` and `runtimes` are sentences on what each reported; `remedy` is the first thing to do.
    """

    name: str
    hardware_id: str | None
    bus: str
    driver: str
    runtimes: str
    remedy: str


@dataclass(frozen=True)
class ModelFit:
    """Whether a model fits a device: `yes`, `partly` (the rest in system memory) or `no`; None if unknown.

    `reason` has the arithmetic. `needed_bytes` are those with all of the model on the device, with the smallest size of
    what the settings leave open. `free_bytes` counts memory that an eviction of idle models would free. `engine_reason`
    is why `engine` would run it there, and which runtime lets a better one run it.
    """

    device: str
    fits: Literal["yes", "partly", "no"] | None
    reason: str
    engine: str
    needed_bytes: int | None = None
    free_bytes: int | None = None
    engine_reason: str = ""


@dataclass(frozen=True)
class Model:
    """A catalogue entry. `options_schemas`: JSON Schemas of the options by task; `options_schema`: that of `task`.

    `memory_bytes`: what it needs with the default context, by kind of device.
    """

    id: str
    name: str
    task: str
    engines: list[str]
    state: ModelState
    bytes: int | None = None
    licence: str | None = None
    source: str | None = None
    reason: str | None = None
    remedy: str | None = None
    default: bool = False
    options_schema: JsonObject = field(default_factory=dict)
    options_schemas: dict[str, JsonObject] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    details: JsonObject = field(default_factory=dict)  # facts from its files, see docs/models.md
    notices: list[str] = field(default_factory=list)  # limits of a usable model, as sentences
    removable: bool = False  # whether DELETE removes it: never files of other programs
    parameters: int | None = None
    quantization: str | None = None
    context_length: int | None = None
    memory_bytes: dict[str, int] = field(default_factory=dict)
    fits: list[ModelFit] = field(default_factory=list)


@dataclass(frozen=True)
class ImportableModel:
    """A model that another program stores on this machine. `source` adds it, `id` is its id once it is added."""

    source: str
    program: str
    state: Literal["ready", "broken"]
    path: str | None = None
    bytes: int | None = None
    task: str | None = None
    engines: list[str] = field(default_factory=list)
    architecture: str | None = None
    quantisation: str | None = None
    reason: str | None = None
    remedy: str | None = None
    notices: list[str] = field(default_factory=list)
    id: str | None = None


@dataclass(frozen=True)
class ModelStore:
    """A folder of another program in which models were searched. `reason`: why it has none, or not all are listed."""

    program: str
    path: str
    models: int
    reason: str | None = None


@dataclass(frozen=True)
class SkippedPath:
    """A file or folder in a model folder that is not offered as a model."""

    path: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Importable:
    """The models of other programs on this machine, the folders searched, and what the model folders leave out."""

    models: list[ImportableModel]
    stores: list[ModelStore]
    skipped: list[SkippedPath]


@dataclass(frozen=True)
class Problem:
    """An error in HTTP responses, events and jobs (RFC 9457, with `code` and `remedy`)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str


@dataclass(frozen=True)
class Artifact:
    """A file that a job produced."""

    name: str
    media_type: str
    bytes: int
    url: str


@dataclass(frozen=True)
class Output:
    """The output of a job: text, files, or both."""

    text: str | None = None
    finish_reason: str | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    result: JsonObject | None = None  # complete result of a benchmark
    lyrics: JsonObject | None = None  # of a song, see docs/lyrics.md


@dataclass(frozen=True)
class Progress:
    """The progress of one phase of a job."""

    phase: str
    done: float
    total: float | None
    unit: str
    eta_s: float | None = None
    per_s: float | None = None  # units per second in this phase


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a job on one device."""

    device: str
    runtime: str | None
    engine: str | None
    started_at: str
    ended_at: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class PlacementPart:
    """A share of the model's nodes or weight bytes, and the device that contains it."""

    where: str
    share_of_nodes: float | None
    share_of_time: float | None = None


@dataclass(frozen=True)
class Placement:
    """Where the model is placed, and the evidence in a sentence."""

    on_device: float | None
    parts: list[PlacementPart] = field(default_factory=list)
    evidence: str = ""


@dataclass(frozen=True)
class DeviceLayers:
    """What a load placed on one device: layers, and the bytes of weights, KV cache and computation."""

    where: str
    layers: int
    bytes: int


@dataclass(frozen=True)
class MemoryFit:
    """How a load fitted a model into memory, with the arithmetic in `explanation`.

    `gpu_layers` of `layers` are on `devices`, the output layer included. `is_partial`: the user set the number, or not
    everything fitted, so that a part is in system memory on purpose. `expert_layers`: layers whose experts are there.
    `retried`: optional, why a first attempt with more layers failed.
    """

    gpu_layers: int
    layers: int
    is_partial: bool
    devices: list[DeviceLayers]
    expert_layers: int
    kv_cache: str
    explanation: str
    retried: str | None = None


@dataclass(frozen=True)
class MeasuredBuffers:
    """Buffers after a load, for the next plan with the same build and backend.

    `compute` is the measured size of the compute buffers divided by the estimate. `driver_bytes`: optional, what the
    device lost outside llama.cpp's buffers.
    """

    build: str
    backend: str
    compute: float
    driver_bytes: int | None = None


@dataclass(frozen=True)
class Memory:
    """Resident memory of the worker around a job, or device memory if the driver reports it."""

    before_bytes: int | None = None
    peak_bytes: int | None = None
    after_bytes: int | None = None


@dataclass(frozen=True)
class Times:
    """Durations by the monotonic clock. `run_s` starts when the worker starts the job."""

    queued_s: float | None = None
    load_s: float | None = None
    first_token_s: float | None = None
    run_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True)
class Rate:
    """A rate in tokens per second or seconds of audio per second."""

    value: float
    unit: str


@dataclass(frozen=True)
class ModelStamp:
    """What identifies the model that the worker opened. `digest` starts with its method; see docs/models.md."""

    bytes: int
    modified_at: str
    digest: str | None = None


@dataclass(frozen=True)
class ModelFile(ModelStamp):
    """A file of a loaded model, as the worker opened it. The integers are those of `stat`."""

    path: str = ""
    modified_ns: int = 0
    changed_ns: int = 0
    inode: int = 0
    volume: int = 0

    def is_same(self, now: os.stat_result) -> bool:
        """Return whether the file at this path is still this one, and was not written to since."""
        then = (self.bytes, self.modified_ns, self.inode, self.volume)
        return then == (now.st_size, now.st_mtime_ns, now.st_ino, now.st_dev)


@dataclass(frozen=True)
class Receipt:
    """The evidence of where a job ran. `used` is from the worker's evidence, never from the request."""

    asked: str
    resolved: str | None
    resolved_reason: str
    used: str | None = None
    fell_back: bool | None = None
    reason: str | None = None
    engine: str | None = None
    runtime: str | None = None
    hardware_id: str | None = None
    placement: Placement | None = None
    attempts: list[Attempt] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    versions: dict[str, str] = field(default_factory=dict)
    times: Times = field(default_factory=Times)
    counts: dict[str, int] = field(default_factory=dict)
    batched: bool = False
    slots: int | None = None  # jobs that the loaded model runs at once
    context_tokens: int | None = None  # of each job
    fit: MemoryFit | None = None
    threads: int | None = None
    seed: int | None = None
    model_file: str | None = None
    model_stamp: ModelStamp | None = None
    chat_template: Literal["model", "default"] | None = None
    rate: Rate | None = None
    audio_s: float | None = None  # total of all variations
    phases: dict[str, float] = field(default_factory=dict)  # seconds by phase name
    chosen: JsonObject = field(default_factory=dict)  # all choices for a tune, with those left open by the request
    worker_pid: int | None = None
    variations: list[int] | None = None  # variations of a share, counted from 1
    parts: list[Receipt] = field(default_factory=list)  # receipts of the shares; the names above are joined by commas


@dataclass(frozen=True)
class Job:
    """A request and its state. `receipt` is set as soon as a worker gets the job."""

    id: str
    task: str
    model: str | None
    status: JobStatus
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    request: JsonObject = field(default_factory=dict)
    output: Output = field(default_factory=Output)
    progress: Progress | None = None
    error: Problem | None = None
    receipt: Receipt | None = None


@dataclass(frozen=True)
class Event:
    """One numbered event of a job's log. `data` always has `job_id` and `at`."""

    id: int
    event: str
    data: JsonObject
