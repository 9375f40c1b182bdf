"""A runtime as HTTP, command line and page show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RuntimeState = Literal["installed", "installable", "installing", "unsupported", "broken"]


@dataclass(frozen=True)
class Runtime:
    """A software stack in an interpreter of its own.

    `version` names the set of packages in use, `previous` the one that a rollback goes back to; both are null where the
    environment is the user's own. `install_bytes` is the disk that an install takes, `download_bytes` what it fetches,
    `install_s` its time on a line of 10 MB/s. `devices` are those that work through it. `job` is the one at work on it.
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
    hardware: list[str] = field(default_factory=list)  # ids of what it would be for
    job: str | None = None
