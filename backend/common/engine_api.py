"""The interface of the engines in `engines/`: facts, requests and results, shared with tasks, workers and server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from backend.common.device_api import DetectedDevice
from backend.common.types import Placement


@dataclass(frozen=True)
class Engine:
    """The facts of an engine: its library, runtimes and backends, the tasks it runs, the files it reads."""

    name: str
    library: str
    runtimes: tuple[str, ...]
    backends: tuple[str, ...]
    tasks: tuple[str, ...]
    suffixes: tuple[str, ...]
    files: tuple[str, ...] = ()  # glob patterns of the files that it reads in a model folder
    other_files: Mapping[str, tuple[tuple[str, ...], ...]] = field(
        default_factory=dict
    )  # by task: alternatives of glob patterns
    classes: frozenset[str] = frozenset()  # model classes, as model folders declare them, that only this engine runs
    batches: bool = False  # whether one loaded model can run several jobs at once
    makes_files: bool = False
    file_tasks: tuple[str, ...] = ()  # tasks that produce files, if not all do
    options: frozenset[str] | None = None  # supported options of its tasks; None: all


@dataclass(frozen=True)
class LoadRequest:
    """What a worker loads. `scratch` is a private folder, deleted when the process exits."""

    device: str
    model_path: str
    context_tokens: int
    threads: int
    slots: int = 1
    scratch: str = ""
    detected_device: DetectedDevice | None = None  # optional, the device as it was listed
    card_free_bytes: int | None = None  # optional, free memory of the card before the load
    provider_options: dict[str, Any] = field(default_factory=dict)  # the user's options for ONNX Runtime's provider
    operator_libraries: list[str] = field(default_factory=list)  # paths of libraries with custom operators
    cache: str = ""  # optional, a folder for compiled code


@dataclass(frozen=True)
class RunRequest:
    """One job for a loaded model: `messages`, `prompt`, `texts` for embeddings, or none of them for music.

    `options` are validated and complete. `inputs` are files by name, each `{path, name, media_type}` with the caller's
    file name as `name`; for onnx also nested arrays.

    The engine writes files to `folder` and emits `artifact {name, media_type}` when each is complete. `share`:
    optional, the first variation and the number of variations that this worker produces; others produce the rest.
    """

    messages: list[dict[str, Any]] | None
    prompt: str | None
    options: dict[str, Any]
    seed: int
    reuse_cache: bool
    folder: str = ""
    texts: list[str] | None = None
    preface: str = ""  # prefix of the output
    inputs: dict[str, Any] = field(default_factory=dict)
    model: str = ""  # its id and licence, written into the metadata of files
    licence: str | None = None
    song: dict[str, Any] | None = None  # for lyrics: the requested song, see `tasks/lyrics`

    share: tuple[int, int] | None = None

    def variations(self) -> range:
        """Return the numbers of the variations to produce here, from 0, of `options["variations"]` in total."""
        first, count = self.share or (0, self.options.get("variations", 1))
        return range(first, first + count)

    @property
    def only_looks(self) -> bool:
        """Whether the request only asks where a graph would run."""
        return self.options.get("action") == "inspect"


@dataclass(frozen=True)
class RunResult:
    """The counts and durations of a finished job. Text and files are emitted. `phases`: seconds by phase name."""

    counts: dict[str, int]
    finish_reason: str
    chat_template: Literal["model", "default"] | None = None
    audio_s: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)  # all choices, including those that the request left open
    evidence: str = ""  # optional, how the job was computed


# A callback with an event's name and data. Returns True if the job should stop.
Emit = Callable[[str, dict[str, Any]], bool]


class Session(Protocol):
    """A loaded model.

    Optional method `device_bytes()`: returns its current memory on the card, None if unknown.
    """

    placement: Placement
    threads: int | None
    versions: dict[str, str]

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Run a job and emit `progress {phase, done, total, unit}`, `token {text, count}` and `artifact`.

        A token with count 0 is text that the model did not generate. `poll {}` only asks whether to stop; any thread
        may emit it. With the option `logprobs`, a token has one entry per vocabulary token of its text: `logprobs:
        [{id, token, bytes, logprob, top_logprobs: [{id, token, bytes, logprob}]}]`.
        """
        ...


class EngineModule(Protocol):
    """The names that a file in `engines/` defines.

    Optional function `least_bytes(model_path)`: returns the least memory of a card that swaps the model's parts in and
    out.
    """

    ENGINE: Engine

    def estimate_bytes(self, model_path: str, context_tokens: int, slots: int) -> int | None:
        """Return the memory that a worker needs, from the file only: the server calls this without the library."""
        ...

    def check(self) -> dict[str, str]:
        """Import the library and return its versions. Raises ImportError or OSError."""
        ...

    def load(self, request: LoadRequest) -> Session:
        """Load the model. Raises a TouchstoneError."""
        ...
