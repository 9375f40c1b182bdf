"""A runtime as the HTTP API, the command line and the page show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RuntimeState = Literal["installed", "installable", "installing", "unsupported", "broken"]


@dataclass(frozen=True)
class Runtime:
    """A software stack with a Python interpreter.

    `version` names the installed set of packages, `previous` the one that a rollback restores; both are null for an
    environment of the user. `install_bytes` is the disk space of an installation, `download_bytes` its download,
    `install_s` its time at 10 MB/s. `devices` are those that work through it. `job` is the job that installs it now.
    """

    name: str
    state: RuntimeState
    version: str | None = None
    previous: str | None = None
    bytes: int | None = None
    install_bytes: int | None = None
    python: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    licence: str | None = None
    reason: str | None = None
    remedy: str | None = None
    title: str = ""
    download_bytes: int | None = None
    install_s: float | None = None
    note: str | None = None
    hardware: list[str] = field(default_factory=list)  # ids of the hardware that it would support
    job: str | None = None
