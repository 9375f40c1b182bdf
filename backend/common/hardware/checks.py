"""Facts about the system, and checks with verdict and remedy, as plain data. The doctor reports them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["ok", "note", "problem"]
Layer = Literal["system", "driver", "permission", "library load", "settings"]
Side = Literal["here", "windows"]


@dataclass(frozen=True)
class Check:
    """The result of one check. `side`: where to apply the remedy under WSL, in this Linux or on Windows."""

    code: str  # "wsl-1", "libcuda-shadowed", "node-refused", "vc-runtime-missing" …
    layer: Layer
    verdict: Verdict
    detail: str
    remedy: str | None = None
    side: Side = "here"
    hardware_id: str | None = None


@dataclass(frozen=True)
class System:
    """The operating system and all checks. `wsl` is 1 or 2, None outside WSL."""

    name: str  # "Debian GNU/Linux 12 (bookworm)", "Microsoft Windows 11 Pro 10.0.26100", "macOS 15.1"
    kernel: str
    machine: str  # "x86_64", "aarch64"
    wsl: int | None = None
    container: str | None = None  # "docker", "podman", "kubernetes" …
    libc: str | None = None  # "glibc 2.36", "musl"
    groups: list[str] = field(default_factory=list)  # of this user
    checks: list[Check] = field(default_factory=list)
