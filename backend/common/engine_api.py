"""The interface of the engines in `engines/`: facts, requests and results, shared with tasks, workers and server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, final

from backend.common.device_api import DetectedDevice
from backend.common.files import open_regular_file
from backend.common.llama_parameters import LlamaParameters
from backend.common.memory_plan import PlanOrder
from backend.common.types import JsonObject, MeasuredBuffers, MemoryFit, Placement, Proof

MODEL_DTYPE = "model"  # the data type that torch's models compute in on a device: `Proof.model_dtype`
BLOB = re.compile(r"sha256[-:][0-9a-f]{64}")  # the name of a file in the store of Ollama


@dataclass(frozen=True)
class FolderDownload:
    """How a model folder is found in a repository: the folder that holds `marker`, with the files directly in it.

    Of several such folders, those with `preferred` in their path come first. With `list_components`, `marker` is an
    index: the function takes the parsed index and a title, returns the subfolders that belong to the model, and raises
    ModelBroken for an index of another kind. `check` raises ModelBroken if a folder in the cache is incomplete.
    """

    marker: str
    title: str
    priority: int  # lower comes first, if a repository has folders of several formats
    preferred: str = ""
    list_components: Callable[[Mapping[str, Any], str], list[str]] | None = None
    check: Callable[[Path], object] | None = None


@dataclass(frozen=True)
class ModelFormat:
    """A file format that an engine runs: how models of it are recognised, downloaded, validated and described.

    A model is one file with `suffix`, or a folder with a match for each glob pattern of `files`. All fields but the
    name are optional; the functions take the path of the model.
    """

    name: str  # `details.format` of a model
    suffix: str = ""  # lowercase, with the dot
    magic: bytes = b""  # the first bytes of such a file, by which one of Ollama's store is recognised without a suffix
    files: tuple[str, ...] = ()
    model_classes: frozenset[str] = frozenset()  # folders that declare one of these classes run on this engine only
    task: str = ""  # the task of such models. Default: the engine's first task
    find_task: Callable[[Path], str | None] | None = None  # the task that a file's content declares
    is_like: Callable[[Path], bool] | None = None  # whether a folder is of this format, complete or not
    validate: Callable[[Path], object] | None = None  # raises ModelBroken or ModelIncompatible
    describe: Callable[[Path], Mapping[str, Any]] | None = None  # `details` of a model
    find_licence: Callable[[Path], str | None] | None = None
    web_download: bool = False  # whether such a file may be downloaded from any web address
    folder_download: FolderDownload | None = None

    def is_complete(self, path: Path) -> bool:
        """Return whether a path has the suffix, or all files of a model folder."""
        if self.suffix and path.suffix.lower() == self.suffix:
            return True
        if self.magic and BLOB.fullmatch(path.name):
            return _starts_with(path, self.magic)
        return bool(self.files) and all(any(path.glob(pattern)) for pattern in self.files)

    def recognises(self, path: Path) -> bool:
        """Return whether a path is of this format, also if some of its files are missing."""
        if self.is_like is not None and self.is_like(path):
            return True
        marker = self.folder_download.marker if self.folder_download else ""
        return self.is_complete(path) or bool(marker) and (path / marker).is_file()


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with open_regular_file(path) as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


@dataclass(frozen=True)
class ConvertedForm:
    """A form of a model that the converter can make for an engine."""

    name: str
    preference: int  # lower is preferred, if several forms of a model exist
    precision: str | None = None  # default: that of the source
    options: Mapping[str, str] = field(default_factory=dict)  # of the builder
    runtime: str | None = None  # the runtime that makes it. Default: the environment for conversions
    space_factor: int = 16  # disk space needed, as a multiple of the source: float32 weights, builder's copy, result


@dataclass(frozen=True)
class Engine:
    """The facts of an engine: its library, runtimes and backends, the tasks it runs, the formats it reads."""

    name: str
    library: str
    runtimes: tuple[str, ...]
    backends: tuple[str, ...]
    tasks: tuple[str, ...]
    formats: tuple[ModelFormat, ...] = ()
    converted_forms: tuple[ConvertedForm, ...] = ()
    runs_user_code: bool = False  # a model is a program of the user, which runs only in a runtime of the user
    batches: bool = False  # whether one loaded model can run several jobs at once
    adapter_suffixes: tuple[str, ...] = ()  # of the files with LoRA adapters that it applies
    plans_memory: bool = False  # whether `load` places layers by the free memory (`LoadRequest.order`)
    makes_files: bool = False
    file_tasks: tuple[str, ...] = ()  # tasks that produce files, if not all do
    options: frozenset[str] | None = None  # supported options of its tasks; None: all
    # The least memory of a card that swaps the model's parts in and out. Default: what `estimate_bytes` returns.
    least_bytes: Callable[[str], int] | None = None
    # Data types that its models compute in, beyond float32, as a proof spells them. Default: only float32.
    data_types: tuple[str, ...] = ()
    # Optional. Those of single backends, instead of `data_types`.
    data_types_by_backend: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    # Optional. Returns the data types that a model file computes in beyond float32, where files of a format differ.
    file_types: Callable[[Path], tuple[str, ...]] | None = None

    # Whether its module has `prove`, which computes on a device through the engine's own library, in a process of its
    # own. Default: the proof of the device is made through that library.
    proves_itself: bool = False

    def unusable_type(self, backend: str, proof: Proof) -> str | None:
        """Return the first data type that the engine needs on a proved device and that is unusable there; or None."""
        needed = self.data_types_by_backend.get(backend, self.data_types)
        named = (proof.model_dtype if dtype == MODEL_DTYPE else dtype for dtype in needed)
        return next((dtype for dtype in named if dtype in proof.unusable), None)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the model files that it reads."""
        return tuple(model_format.suffix for model_format in self.formats if model_format.suffix)


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter that is applied to a model while it is loaded."""

    path: str
    scale: float = 1.0


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
    provider_options: JsonObject = field(default_factory=dict)  # the user's options for ONNX Runtime's provider
    operator_libraries: list[str] = field(default_factory=list)  # paths of libraries with custom operators
    adapters: list[LoraAdapter] = field(default_factory=list)  # applied to the model
    compile_cache_dir: str = ""  # optional, a folder for compiled code
    check_bytes: int = 0  # the largest copy of a text model on the processor that its check may load
    verdict_dir: str = ""  # optional, a folder for the results of such checks
    driver: str | None = None  # of the device
    llama: LlamaParameters = field(default_factory=LlamaParameters)
    order: PlanOrder | None = None  # optional, for engines that plan their memory. Default: sizes as they are here


class FunctionCall(TypedDict):
    """The function that the model calls, with its arguments by name."""

    name: str
    arguments: JsonObject


class ToolCall(TypedDict):
    """A call in a message of the assistant. `id`: optional, the message with the result repeats it."""

    id: str | None
    type: Literal["function"]
    function: FunctionCall


class _Message(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None


class Message(_Message, total=False):
    """One message of a conversation. Optional: `name`, the author or the tool; `tool_call_id` of a tool.

    Of the assistant also `tool_calls`, and `reasoning_content`, what it thought before it answered.
    """

    tool_calls: list[ToolCall]
    reasoning_content: str
    name: str
    tool_call_id: str


class SongFields(TypedDict):
    """The song that a request for lyrics describes. `sections` are kinds in their order, such as `verse`."""

    theme: str | None
    style: str | None
    language: str
    sections: list[str]
    lines_per_section: int


@dataclass(frozen=True)
class RunRequest:
    """One job for a loaded model: `messages`, `prompt`, `texts` for embeddings, or none of them for music.

    `options` are validated and complete. `inputs` are files by name, each `{path, name, media_type}` with the caller's
    file name as `name`; for onnx also nested arrays.

    The engine writes files to `folder` and emits `artifact {name, media_type}` when each is complete. `share`:
    optional, the first variation and the number of variations that this worker produces; others produce the rest.
    """

    messages: list[Message] | None
    prompt: str | None
    options: JsonObject
    seed: int
    reuse_cache: bool
    folder: str = ""
    texts: list[str] | None = None
    preface: str = ""  # prefix of the output
    inputs: JsonObject = field(default_factory=dict)
    model: str = ""  # its id and licence, written into the metadata of files
    licence: str | None = None
    song: SongFields | None = None  # for lyrics: the requested song, see `tasks/lyrics`
    share: tuple[int, int] | None = None

    def variations(self) -> range:
        """Return the numbers of the variations to produce here, from 0, of `options["variations"]` in total."""
        first, count = self.share or (0, self.options.get("variations", 1))
        return range(first, first + count)

    @property
    def is_inspection(self) -> bool:
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
    chosen: Mapping[str, object] = field(default_factory=dict)  # choices, including those that the request left open
    evidence: str = ""  # optional, how the job was computed


class TokenProbability(TypedDict):
    """A token of the vocabulary, its UTF-8 bytes and its log probability; None: the token is impossible."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | None


class TokenLogprob(TokenProbability):
    """A generated token and the most probable tokens in its place, the most probable first."""

    top_logprobs: list[TokenProbability]


class _TokenEvent(TypedDict):
    text: str
    count: int


@final
class TokenEvent(_TokenEvent, total=False):
    """Text and the number of its tokens. Optional: `logprobs`, an entry for each vocabulary token of the text."""

    logprobs: list[TokenLogprob]


@final
class ProgressEvent(TypedDict):
    """How far a phase of the job is. `total` is None if it is unknown."""

    phase: str
    done: float
    total: float | None
    unit: str


@final
class ArtifactEvent(TypedDict):
    """A file in the job's folder is complete."""

    name: str
    media_type: str


@final
class PollEvent(TypedDict):
    """No data: the event only asks whether to stop."""


EventData = TokenEvent | ProgressEvent | ArtifactEvent | PollEvent
# A callback with an event's name and data. Returns True if the job should stop.
Emit = Callable[[str, EventData], bool]


class Session(Protocol):
    """A loaded model. A session that subclasses this gets the defaults."""

    placement: Placement
    threads: int | None
    versions: dict[str, str]
    model_file: str | None = None  # the file of a model folder that was loaded, for the receipt
    # Optional, of an engine that plans its memory. Default: as requested.
    slots: int | None = None
    context_tokens: int | None = None
    fit: MemoryFit | None = None
    measured: MeasuredBuffers | None = None

    def device_bytes(self) -> int | None:
        """Return the memory that the model takes on a card now. Default: None, unknown."""
        return None

    def find_placement(self) -> Placement | None:
        """Return where the model is now, looked up again. Default: None, the library cannot tell."""
        return None

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Run a job and emit `progress {phase, done, total, unit}`, `token {text, count}` and `artifact`.

        A token with count 0 is text that the model did not generate. `poll {}` only asks whether to stop; any thread
        may emit it. With the option `logprobs`, a token has one `TokenLogprob` per vocabulary token of its text.
        """
        ...


class EngineModule(Protocol):
    """The names that a file in `engines/` defines."""

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
