"""The nouns as plain dataclasses, shared by server, children, command line and HTTP.

Standard library only and Python 3.10 syntax: foreign environments import this file too. Units: seconds (float),
bytes (int), moments ISO 8601 UTC. A fact that is not known is None, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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
    """What a child computed to show that a device is real, and how far it was from the reference.

    The first figures are those of the operation's entry that was nearest to its tolerance. `checks` are all operations
    `{operation, dtype, max_abs_error, tolerance}`, or `{operation, dtype, skipped}` with the library's reason;
    `evidence` says how it is known where data lay; `gflops` is the rate of a float32 matrix product.
    """

    operation: str
    dtype: str
    max_abs_error: float
    tolerance: float
    seconds: float
    versions: dict[str, str]
    at: str
    pid: int
    checks: list[dict[str, Any]] = field(default_factory=list)
    evidence: str | None = None
    gflops: float | None = None


@dataclass(frozen=True)
class Speed:
    """A median measured here for one model and engine, with its quartiles; `together` is the rate of all `streams`."""

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
    """One usable target. `ready` exactly when `proof` stands and `reason` is None."""

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
    note: str | None = None  # what else should be known of a device that works
    served_by: dict[str, list[str]] = field(default_factory=dict)  # which runtime brings which engines
    lacks: dict[str, str] = field(default_factory=dict)  # engines that a runtime should bring: why not, and what to do


@dataclass(frozen=True)
class Hardware:
    """A physical thing the system reports; it owns one lane."""

    id: str
    name: str
    vendor: str | None
    kind: DeviceKind
    memory_bytes: int | None = None
    driver: str | None = None  # its name and version
    devices: list[str] = field(default_factory=list)
    reason: str | None = None  # why nothing can use it as things are: no driver, no permission, an emulated adapter
    remedy: str | None = None
    memory_shared_bytes: int | None = None  # what it borrows of the machine's memory
    driver_date: str | None = None  # YYYY-MM-DD
    pci_ids: str | None = None  # "1002:744c"
    architecture: str | None = None  # "gfx1100" of AMD, "sm_90" of NVIDIA
    uuid: str | None = None
    luid: str | None = None
    render_node: str | None = None  # "/dev/dri/renderD128"
    hidden_by: list[str] = field(default_factory=list)  # which variable hides it from which libraries, in sentences
    cores: int | None = None  # of a processor
    threads: int | None = None
    instructions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Model:
    """A catalogue entry. `options_schemas` are the JSON Schemas of options by task, `options_schema` that of `task`."""

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
    options_schema: dict[str, Any] = field(default_factory=dict)
    options_schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # what its files tell: see docs/models.md


@dataclass(frozen=True)
class Problem:
    """An error as HTTP, events and jobs show it (RFC 9457, with `code` and `remedy`)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str


@dataclass(frozen=True)
class Artifact:
    """A finished file of a job."""

    name: str
    media_type: str
    bytes: int
    url: str


@dataclass(frozen=True)
class Output:
    """What a job made: text, files, or both."""

    text: str | None = None
    finish_reason: str | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    result: dict[str, Any] | None = None  # of a benchmark, in full
    lyrics: dict[str, Any] | None = None  # of a song in words: see docs/lyrics.md


@dataclass(frozen=True)
class Progress:
    """How far a phase of a job is."""

    phase: str
    done: float
    total: float | None
    unit: str
    eta_s: float | None = None
    per_s: float | None = None  # units a second in this phase


@dataclass(frozen=True)
class Attempt:
    """One try to run a job on one device."""

    device: str
    runtime: str | None
    engine: str | None
    started_at: str
    ended_at: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class PlacementPart:
    """A share of the model's nodes or weight bytes, and where it lies."""

    where: str
    share_of_nodes: float | None
    share_of_time: float | None = None


@dataclass(frozen=True)
class Placement:
    """Where the model really lies, with the sentence that names the source of this knowledge."""

    on_device: float | None
    parts: list[PlacementPart] = field(default_factory=list)
    evidence: str = ""


@dataclass(frozen=True)
class Memory:
    """Resident memory of the worker around a job, or device memory where a driver reports it."""

    before_bytes: int | None = None
    peak_bytes: int | None = None
    after_bytes: int | None = None


@dataclass(frozen=True)
class Times:
    """Durations by the monotonic clock. `run_s` begins when the worker starts on the job."""

    queued_s: float | None = None
    load_s: float | None = None
    first_token_s: float | None = None
    run_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True)
class Rate:
    """Tokens a second, or seconds of audio a second."""

    value: float
    unit: str


@dataclass(frozen=True)
class Receipt:
    """The evidence of where a job ran. `used` comes from the worker's evidence, never from the request."""

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
    threads: int | None = None
    seed: int | None = None
    model_file: str | None = None
    chat_template: Literal["model", "default"] | None = None
    rate: Rate | None = None
    audio_s: float | None = None  # of all variations together
    phases: dict[str, float] = field(default_factory=dict)  # seconds of the run, by the name of its phase
    chosen: dict[str, Any] = field(default_factory=dict)  # what a tune was made from, also what the request left open
    worker_pid: int | None = None
    variations: list[int] | None = None  # those of a share, counted from 1
    parts: list[Receipt] = field(default_factory=list)  # of the shares, whose names stand above with commas between


@dataclass(frozen=True)
class Job:
    """A request and its life; `receipt` stands for each job that was given to a worker."""

    id: str
    task: str
    model: str | None
    status: JobStatus
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    request: dict[str, Any] = field(default_factory=dict)
    output: Output = field(default_factory=Output)
    progress: Progress | None = None
    error: Problem | None = None
    receipt: Receipt | None = None


@dataclass(frozen=True)
class Event:
    """One numbered line of a job's history; `data` always has `job_id` and `at`."""

    id: int
    event: str
    data: dict[str, Any]
