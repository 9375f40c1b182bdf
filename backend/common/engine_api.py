"""What an engine is, and what it is asked: shared by engines, tasks, workers and the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from backend.common.device_api import DetectedDevice
from backend.common.types import Placement


@dataclass(frozen=True)
class Engine:
    """The facts of an engine: what it runs, where its library lives, which files it reads."""

    name: str
    library: str
    runtimes: tuple[str, ...]
    backends: tuple[str, ...]
    tasks: tuple[str, ...]
    suffixes: tuple[str, ...]
    files: tuple[str, ...] = ()  # of a model that is a folder: those that this engine reads (globs)
    other_files: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)  # by task, of each kind
    classes: frozenset[str] = frozenset()  # of models, as their folders declare them: those are this engine's alone
    batches: bool = False  # whether one loaded model can run several jobs at once
    makes_files: bool = False
    file_tasks: tuple[str, ...] = ()  # those of its tasks that make files, where not all do
    options: frozenset[str] | None = None  # of its tasks' options those that it honours; None where it is all of them


@dataclass(frozen=True)
class LoadRequest:
    """What a worker is told to load. `scratch` is a private folder that goes with the process."""

    device: str
    model_path: str
    context_tokens: int
    threads: int
    slots: int = 1
    scratch: str = ""
    detected_device: DetectedDevice | None = None  # the device as it was listed
    card_free_bytes: int | None = None  # of a card's own memory before anything is loaded, where the system tells
    provider_options: dict[str, Any] = field(default_factory=dict)  # the user's, for ONNX Runtime's provider
    operator_libraries: list[str] = field(default_factory=list)  # with more operators for ONNX Runtime; paths
    cache: str = ""  # a folder for what the library compiles for this card, driver and runtime


@dataclass(frozen=True)
class RunRequest:
    """One job for a loaded model: `messages`, `prompt`, `texts` for embeddings, or none of them for music.

    `options` are validated and complete. `inputs` are files by name, each `{path, name, media_type}`, where `name` is
    the caller's word and no path, or for onnx also nested arrays.

    Files are made in `folder` and handed over by emitting `artifact {name, media_type}` once each is complete. `share`
    is the first and the number of the variations that are made here, where other workers make the rest.
    """

    messages: list[dict[str, Any]] | None
    prompt: str | None
    options: dict[str, Any]
    seed: int
    reuse_cache: bool
    folder: str = ""
    texts: list[str] | None = None
    preface: str = ""  # text that the output begins with
    inputs: dict[str, Any] = field(default_factory=dict)
    model: str = ""  # its id and licence, for what files say of themselves
    licence: str | None = None
    song: dict[str, Any] | None = None  # for lyrics: the song that is wished for, see `backend/lyrics/asking.py`

    share: tuple[int, int] | None = None

    def variations(self) -> range:
        """The variations to make here, counted from 0, of `options["variations"]` in all."""
        first, count = self.share or (0, self.options.get("variations", 1))
        return range(first, first + count)

    @property
    def only_looks(self) -> bool:
        """Whether it asks where a graph would run, so that any answer will do."""
        return self.options.get("action") == "inspect"


@dataclass(frozen=True)
class RunResult:
    """What the engine counted. Text and files went out through `emit`. `phases` are seconds, by the phase's name."""

    counts: dict[str, int]
    finish_reason: str
    chat_template: Literal["model", "default"] | None = None
    audio_s: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)  # what the request left open, and all that it did not
    evidence: str = ""  # how this job was computed, in a sentence, where the engine has several ways


# Called with an event's name and data; True means: stop now.
Emit = Callable[[str, dict[str, Any]], bool]


class Session(Protocol):
    """A loaded model.

    It may have `device_bytes()`: what it takes of a card's own memory now, or None where nothing tells.
    """

    placement: Placement
    threads: int | None
    versions: dict[str, str]

    def run(self, request: RunRequest, emit: Emit) -> RunResult:
        """Generates, emitting `progress {phase, done, total, unit}`, `token {text, count}` and `artifact`.

        A token whose count is 0 is text that the model did not generate. `poll {}` only asks whether to stop, and
        may come from another thread.
        With the option `logprobs` a token has them for its text, one token of the vocabulary each: `logprobs:
        [{id, token, bytes, logprob, top_logprobs: [{id, token, bytes, logprob}]}]`.
        """
        ...


class EngineModule(Protocol):
    """What a file in this folder offers.

    It may have `least_bytes(model_path)`: what a card has to hold where the parts of a model can come there in turns.
    """

    ENGINE: Engine

    def estimate_bytes(self, model_path: str, context_tokens: int, slots: int) -> int | None:
        """Memory that a worker will need, from the file alone; the server asks, so the library is not touched."""
        ...

    def check(self) -> dict[str, str]:
        """Imports the library and returns its versions. Raises ImportError or OSError."""
        ...

    def load(self, request: LoadRequest) -> Session:
        """Loads the model. Raises a TouchstoneError."""
        ...
