"""What the system says of itself, for the doctor: plain facts, and findings with verdict and remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["ok", "note", "problem"]
Side = Literal["here", "windows"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `side` tells who must act under WSL: this Linux, or the Windows around it."""

    topic: str  # "wsl", "driver", "libcuda", "permission", "python", "runtime library", "paths" …
    verdict: Verdict
    detail: str
    remedy: str | None = None
    side: Side = "here"
    hardware_id: str | None = None


@dataclass(frozen=True)
class System:
    """The machine in words, and all findings. `wsl` is 1 or 2, or None outside WSL."""

    name: str  # "Debian GNU/Linux 12 (bookworm)", "Windows 11 …", "macOS 15.1"
    kernel: str
    machine: str  # "x86_64", "aarch64"
    python: str
    wsl: int | None = None
    container: str | None = None  # "docker", "podman", "kubernetes" …
    libc: str | None = None  # "glibc 2.36"
    groups: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
