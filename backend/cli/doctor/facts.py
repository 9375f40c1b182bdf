"""All facts that findings are made from, as plain data. An unknown fact is None or empty, never a guess."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from backend.common.hardware.checks import Check
from backend.common.types import Device, Hardware, JsonObject, Model

PortState = Literal["free", "ours", "taken", "forbidden"]


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, as it reports itself. `base` is the installation that a virtual environment is based on."""

    version: str
    bits: int
    path: str
    base: str
    venv: bool
    platform: str


@dataclass(frozen=True)
class Flavour:
    """A distribution with an import package that other distributions contain too."""

    name: str
    version: str
    missing_files: int = 0


@dataclass(frozen=True)
class Written:
    """The distribution that the files on disk belong to."""

    name: str
    version: str


@dataclass(frozen=True)
class Unmet:
    """A pinned requirement that the environment does not satisfy. Optional: `found`, if the package exists."""

    package: str
    needs: str
    found: str | None


@dataclass(frozen=True)
class TorchBuild:
    """The target of a torch build, by its version file. All None: CPU only (or Apple's GPUs)."""

    version: str | None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None


@dataclass(frozen=True)
class RuntimeFacts:
    """The packages of a runtime's interpreter. `trouble` is the reason if the rest is empty.

    `kept`: Touchstone installed it, completely or not at all, so it is never repaired by hand.
    """

    name: str
    python: str
    trouble: str | None = None
    kept: bool = False
    interpreter: Interpreter | None = None
    packages: dict[str, str] = field(default_factory=dict)
    shared: dict[str, list[Flavour]] = field(default_factory=dict)
    on_disk: dict[str, Written] = field(default_factory=dict)
    torch: TorchBuild | None = None
    unmet: list[Unmet] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StorageFacts:
    """The data folder. `holder` is the note of the server that holds it; `held`: its lock is taken."""

    data_dir: str
    exists: bool = True
    writable: bool | None = None
    filesystem: str | None = None  # as the mount table names it: "ext4", "9p", "nfs4" …
    free_bytes: int | None = None
    held: bool | None = None
    holder: JsonObject | None = None
    history: str | None = None  # error when the job history is read


@dataclass(frozen=True)
class ServerFacts:
    """The server of the data folder, if one answers, and the port that a new one would use."""

    url: str | None = None
    trouble: str | None = None  # error when the devices were requested
    host: str = "127.0.0.1"
    port: int = 8000
    port_state: PortState | None = None
    free_port: int | None = None


@dataclass(frozen=True)
class Platform:
    """The operating system, as far as remedies depend on it."""

    system: str  # sys.platform: "linux", "win32", "darwin"
    release: str = ""  # of the kernel
    distribution: tuple[str, ...] = ()  # ID and ID_LIKE of os-release
    wsl: int | None = None
    container: str | None = None
    name: str = ""  # "Debian GNU/Linux 12 (bookworm)"
    machine: str = ""  # "x86_64"
    libc: str | None = None  # "glibc 2.36"
    groups: tuple[str, ...] = ()  # of this session
    joined: tuple[str, ...] = ()  # of the user, by the system's database


@dataclass(frozen=True)
class Facts:
    """All facts."""

    platform: Platform
    checks: list[Check] = field(default_factory=list)
    hardware: list[Hardware] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    runtimes: list[RuntimeFacts] = field(default_factory=list)
    storage: StorageFacts | None = None
    server: ServerFacts | None = None
    models: list[Model] = field(default_factory=list)
