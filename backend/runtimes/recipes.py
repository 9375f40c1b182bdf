"""What each runtime is made of: one file of `data/` a runtime. Which hardware it fits, the backends say themselves."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter
from pydantic.dataclasses import dataclass

from backend.devices import backends
from backend.engines import engines

FOLDER = Path(__file__).with_name("data")
BASE = Path(__file__).resolve().parents[2] / "requirements.txt"
LINE_BYTES_PER_S = 10e6  # the line that times are reckoned for
_STRICT = ConfigDict(extra="forbid")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_DISTRIBUTION = re.compile(r"[A-Za-z0-9._-]+")
Version = Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
Platform = Literal["linux-x86_64", "linux-aarch64", "win32-x86_64", "win32-aarch64", "darwin-aarch64", "darwin-x86_64"]


@dataclass(frozen=True, config=_STRICT)
class Build:
    """A runtime on some platforms. `known` says where the sizes come from; the installed one may be an estimate."""

    platforms: list[Platform]
    download_bytes: Annotated[int, Field(gt=0)]
    installed_bytes: Annotated[int, Field(gt=0)]
    known: str
    index: str | None = None  # asked beside the user's own package index


@dataclass(frozen=True, config=_STRICT)
class Recipe:
    """A runtime that can be made. `requirements` may hold `{architecture}`, the chip's name, such as gfx1100."""

    title: str
    licence: str
    python: Annotated[list[Version], Field(min_length=2, max_length=2)]  # the first and the last that will do
    requirements: list[str] = field(default_factory=list)
    like_base: list[str] = field(default_factory=list)  # packages taken as requirements.txt names them for `.venv`
    builds: list[Build] = field(default_factory=list)
    processor: bool = False  # of use without any card
    first_for: list[str] = field(default_factory=list)  # makers for whose cards it is offered before all others
    note: str | None = None
    own: str | None = None  # why only the user's own environment will do, and how to get one
    name: str = ""

    def build(self, here: str | None = None) -> Build | None:
        """How it is made on a platform, on this one unless another is named; None if it cannot be."""
        here = here or this_platform()
        return next((build for build in self.builds if here in build.platforms), None)

    def lines(self, architecture: str | None = None) -> list[str]:
        """The requirement lines."""
        named = [line.replace("{architecture}", architecture or "") for line in self.requirements]
        return [*named, *(line for name in self.like_base for line in _base()[name])]

    @property
    def by_chip(self) -> bool:
        """Whether the requirements depend on the card's chip."""
        return any("{architecture}" in line for line in self.requirements)


@cache
def recipes() -> dict[str, Recipe]:
    """All runtimes by name, found by listing the folder."""
    return read_recipes(FOLDER)


def read_recipes(folder: Path) -> dict[str, Recipe]:
    """The runtimes of a folder of recipe files. Raises pydantic's ValidationError."""
    read = TypeAdapter(Recipe).validate_python
    return {
        file.stem: read({**yaml.safe_load(file.read_text(encoding="utf-8")), "name": file.stem})
        for file in sorted(folder.glob("*.yaml"))
    }


def this_platform() -> str:
    """`linux-x86_64`, as the recipes name it."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{_MACHINES.get(machine, machine)}"


def how_to(recipe: Recipe) -> str:
    """The command that installs it, with what that costs, as a sentence."""
    build = recipe.build()
    if build is None:
        return f"{recipe.title} is not to be had for {this_platform()}."
    note = f" {recipe.note}" if recipe.note else ""
    return f"Install it: `runtimes install {recipe.name}` ({costs(build)}).{note}"


def bringing(names: Iterable[str], backend: str, lacks: Mapping[str, str]) -> str:
    """What would let one of the engines `names` run on a backend that none of them runs on yet, in sentences.

    `lacks` says of engines why a runtime that reaches the device and should bring them does not.
    """
    names = list(names)
    if why := next((lacks[name] for name in names if name in lacks), None):
        return f"{why} Or choose another device."
    facts = [engines()[name] for name in names if name in engines()]
    wanted = {runtime for engine in facts if backend in engine.backends for runtime in engine.runtimes}
    offered = [name for name in backends()[backend].runtimes if name in wanted and name in recipes()]
    for name in offered:
        if build := recipes()[name].build():
            return f"Install what brings it: `runtimes install {name}` ({costs(build)}), or choose another device."
    return "Choose another device or model, or leave the engine out."


def costs(build: Build) -> str:
    """Size, time and disk in words."""
    minutes = max(1, round(build.download_bytes / LINE_BYTES_PER_S / 60))
    return f"{size(build.download_bytes)} to fetch, {minutes} min at 10 MB/s, {size(build.installed_bytes)} on disk"


def size(count: float) -> str:
    """Bytes in words."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


@cache
def _base() -> dict[str, list[str]]:
    """The lines of requirements.txt by the name of their distribution."""
    found: dict[str, list[str]] = {}
    for line in BASE.read_text(encoding="utf-8").splitlines():
        if match := _DISTRIBUTION.match(line):
            found.setdefault(match[0], []).append(line)
    return found
