"""Every setting with its type and default. `config.yaml` has the same list with a comment on each."""

from __future__ import annotations

import os
import re
from dataclasses import field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationInfo
from pydantic.dataclasses import dataclass

_STRICT_KEYS = ConfigDict(extra="forbid", validate_default=True)
AUTO: Literal["auto"] = "auto"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(value: object) -> object:
    """Parse `4GB` (powers of 1000) or `4GiB` (powers of 1024) to bytes. Returns other types unchanged."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("should be a size such as 512MB, 4GB or 4GiB")
    number, prefix, binary = match.groups()
    return int(Fraction(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))


def with_home(path: str | Path) -> Path:
    """Expand `~`. An unknown user name stays as it is; Path.expanduser would raise an exception."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("should be a number, not yes or no")
    return value


def _number_or_auto(least: int) -> BeforeValidator:
    """Return a validator for a number that may be left to the service."""

    def parse(value: object) -> object:
        word = value.strip().lower() if isinstance(value, str) else value
        if isinstance(word, str) and word.isdecimal():
            word = int(word)
        if word == AUTO or (isinstance(word, int) and not isinstance(word, bool) and word >= least):
            return word
        raise ValueError(f"should be auto, or a number of at least {least}")

    return BeforeValidator(parse)


def _anchor(path: Path, info: ValidationInfo) -> Path:
    """Make a path absolute, relative to the configuration file. Without one, as in tests, it stays relative."""
    root: Path | None = (info.context or {}).get("root")
    if "\0" in str(path):
        raise ValueError("should be a path without a null byte")
    return path if root is None else root / with_home(path)


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Positive = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_size), BeforeValidator(_no_bool), Field(ge=1)]
Location = Annotated[Path, AfterValidator(_anchor)]
ModelId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9._-]+$")]
DeviceId = Annotated[str, BeforeValidator(_lower), StringConstraints(pattern=r"^[a-z0-9-]+(:\d{1,2})?$")]
RuntimeName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9._-]+$")]
Origin = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+/?)$")]
PublicUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^/\s?#]+(/[A-Za-z0-9._~/-]*)?$")]
Task = Literal["text", "lyrics", "music", "stems", "onnx", "embeddings"]


@dataclass(frozen=True, config=_STRICT_KEYS)
class DefaultModels:
    """The default model of each task."""

    text: ModelId | None = "smollm2-135m-instruct"
    music: ModelId | None = "folk-tunes"


@dataclass(frozen=True, config=_STRICT_KEYS)
class LoraFile:
    """A LoRA adapter, anywhere on this machine. A `scale` of 1 applies it as it was trained."""

    path: Location
    scale: Annotated[float, BeforeValidator(_no_bool), Field(ge=-10, le=10, allow_inf_nan=False)] = 1.0


@dataclass(frozen=True, config=_STRICT_KEYS)
class OwnModel:
    """A model file or folder of the user, anywhere on this machine; or another model (`base`) with adapters."""

    path: Location | None = None
    base: ModelId | None = None  # the id of another model, optionally instead of `path` with `adapters`
    adapters: list[LoraFile] = field(default_factory=list)
    task: Task | None = None
    engine: str | None = None
    runtime: str | None = None  # for an adapter: the user's environment that runs it


@dataclass(frozen=True, config=_STRICT_KEYS)
class DeviceRules:
    """The user's rules for one device."""

    enabled: bool = True
    memory_limit: Size | None = None
    provider_options: dict[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT_KEYS)
class RuntimeRules:
    """The user's interpreter for a runtime: probed like any other, never modified.

    `libraries`: optional, a folder with llama.cpp's shared libraries in place of an interpreter.
    `index`: optional, a package index for installations. Default: the index of the runtime's recipe.
    """

    python: Location | None = None
    libraries: Location | None = None
    index: Annotated[str, StringConstraints(min_length=1)] | None = None


@dataclass(frozen=True, config=_STRICT_KEYS)
class Server:
    """The server's address and its limits."""

    host: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)] = "127.0.0.1"
    port: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65535)] = 8000
    token: Annotated[str, StringConstraints(pattern=r"^[!-~]+$")] | None = field(default=None, repr=False)
    allowed_hosts: list[str] = field(default_factory=list)
    allowed_origins: list[Origin] = field(default_factory=list)
    public_url: PublicUrl | None = None
    body_limit_bytes: Size = 8_388_608
    follower_limit: Count = 100
    connection_limit: Count = 500
    request_s: Positive = 20


@dataclass(frozen=True, config=_STRICT_KEYS)
class Storage:
    """The folder that the service writes to, and how long it keeps jobs."""

    data_dir: Location = Path("data")
    keep_days: Annotated[Positive, Field(le=36_500)] = 90
    keep_bytes: Size = 1_000_000_000


@dataclass(frozen=True, config=_STRICT_KEYS)
class Files:
    """Limits of the files that clients upload for their jobs."""

    limit_bytes: Size = 2_000_000_000
    keep_hours: Annotated[Positive, Field(le=87_600)] = 24
    keep_free_bytes: Size = 500_000_000


@dataclass(frozen=True, config=_STRICT_KEYS)
class Queue:
    """The limit of queued jobs."""

    limit: Count = 1000


@dataclass(frozen=True, config=_STRICT_KEYS)
class Supervision:
    """Timeouts after which a child process counts as hung."""

    silence_s: Positive = 10
    load_s: Positive = 120
    step_s: Positive = 60
    probe_s: Positive = 30
    cancel_s: Positive = 1.5


@dataclass(frozen=True, config=_STRICT_KEYS)
class Text:
    """Defaults and limits of text models."""

    max_tokens: Count = 256
    context_tokens: Annotated[int | Literal["auto"], _number_or_auto(64)] = AUTO
    threads: Count | None = None
    slots: Annotated[int | Literal["auto"], _number_or_auto(1)] = AUTO
    gpu_layers: Annotated[int | Literal["auto"], _number_or_auto(0)] = AUTO
    experts: Literal["auto", "system", "device"] = "auto"
    kv_cache: Literal["f16", "q8_0", "q4_0"] = "f16"
    check_memory: Size = 4_000_000_000
    keep_alive_s: Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)] = 300


@dataclass(frozen=True, config=_STRICT_KEYS)
class Onnx:
    """ONNX graphs. Operator libraries are programs: list only those that you trust."""

    operator_libraries: list[Location] = field(default_factory=list)


@dataclass(frozen=True, config=_STRICT_KEYS)
class Measuring:
    """Whether the service runs benchmarks when idle, and after how many seconds without a job."""

    when_idle: bool = True
    idle_s: Positive = 300


@dataclass(frozen=True, config=_STRICT_KEYS)
class Log:
    """The log: level, format, and its target, stderr or a rotated file."""

    file: Location | None = None
    file_bytes: Size = 5_000_000
    files: Count = 3
    level: Literal["debug", "info", "warning", "error"] = "info"
    json: bool = False
    prompts: bool = False


@dataclass(frozen=True, config=_STRICT_KEYS)
class Settings:
    """All settings, validated, with absolute paths."""

    device: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)] = "auto"
    default_models: DefaultModels = field(default_factory=DefaultModels)
    models: dict[ModelId, OwnModel] = field(default_factory=dict)
    model_folders: list[Location] = field(default_factory=list)
    preload: list[ModelId] = field(default_factory=list)
    devices: dict[DeviceId, DeviceRules] = field(default_factory=dict)
    runtimes: dict[RuntimeName, RuntimeRules] = field(default_factory=dict)
    server: Server = field(default_factory=Server)
    storage: Storage = field(default_factory=Storage)
    files: Files = field(default_factory=Files)
    queue: Queue = field(default_factory=Queue)
    supervision: Supervision = field(default_factory=Supervision)
    text: Text = field(default_factory=Text)
    onnx: Onnx = field(default_factory=Onnx)
    measuring: Measuring = field(default_factory=Measuring)
    log: Log = field(default_factory=Log)

    @property
    def data_dir(self) -> Path:
        """The data folder."""
        return self.storage.data_dir

    @property
    def models_dir(self) -> Path:
        """The folder that downloads go to."""
        return self.storage.data_dir / "models"
