"""The packages of each runtime: one file of `data/` per runtime. The backends declare which hardware each suits."""

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

from backend.common.commands import command
from backend.common.installation import base_requirements
from backend.devices import backends
from backend.engines import engines

FOLDER = Path(__file__).with_name("data")
LINE_BYTES_PER_S = 10e6  # the bandwidth for which download times are estimated
_STRICT = ConfigDict(extra="forbid")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_DISTRIBUTION = re.compile(r"[A-Za-z0-9._-]+")
Version = Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
Platform = Literal["linux-x86_64", "linux-aarch64", "win32-x86_64", "win32-aarch64", "darwin-aarch64", "darwin-x86_64"]


@dataclass(frozen=True, config=_STRICT)
class BuildIndex:
    """The package index of a vendor.

    `packages`: patterns of the names that come from it, such as `torch*`; all others come from the user's index.
    `sources`: names that it has as source packages only, whose code runs during the installation.
    """

    url: str
    packages: Annotated[list[str], Field(min_length=1)]
    sources: list[str] = field(default_factory=list)


@dataclass(frozen=True, config=_STRICT)
class Build:
    """A runtime on some platforms. `known` is the source of the sizes; the installed size may be an estimate.

    `local`: by package, how the local part of its version must begin (`cpu` in `2.14.1+cpu`; empty: no local part).
    """

    platforms: list[Platform]
    download_bytes: Annotated[int, Field(gt=0)]
    installed_bytes: Annotated[int, Field(gt=0)]
    known: str
    index: BuildIndex | None = None  # in addition to the user's
    local: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class Recipe:
    """A runtime that can be installed. `requirements` may contain `{architecture}`, the name of the card's chip."""

    title: str
    licence: str
    python: Annotated[list[Version], Field(min_length=2, max_length=2)]  # the first and the last supported version
    requirements: list[str] = field(default_factory=list)
    like_base: list[str] = field(default_factory=list)  # packages with the same lines as in requirements.txt
    # Packages of which only the files are used, no Python module: unpacked for any Python, without their dependencies.
    libraries: list[str] = field(default_factory=list)
    builds: list[Build] = field(default_factory=list)
    processor: bool = False  # useful without a card
    first_for: list[str] = field(default_factory=list)  # vendors for whose cards it is recommended first
    note: str | None = None
    replaces: list[str] = field(default_factory=list)  # former names of runtimes that this one replaces
    own: str | None = None  # why only an environment of the user works, and how to create one
    name: str = ""

    def build(self, here: str | None = None) -> Build | None:
        """Return how it is installed on a platform. Default: this one. None if it is not available there."""
        here = here or this_platform()
        return next((build for build in self.builds if here in build.platforms), None)

    def lines(self, architecture: str | None = None) -> list[str]:
        """Return the requirement lines."""
        lines = [line.replace("{architecture}", architecture or "") for line in self.requirements]
        return [*lines, *(line for name in self.like_base for line in _base()[name])]

    @property
    def by_chip(self) -> bool:
        """Whether the requirements depend on the card's chip."""
        return any("{architecture}" in line for line in self.requirements)


@cache
def recipes() -> dict[str, Recipe]:
    """Return all runtimes by name, found by listing the folder."""
    return read_recipes(FOLDER)


def read_recipes(folder: Path) -> dict[str, Recipe]:
    """Parse a folder of recipe files. Raises pydantic's ValidationError."""
    read = TypeAdapter(Recipe).validate_python
    return {
        file.stem: read({**yaml.safe_load(file.read_text(encoding="utf-8")), "name": file.stem})
        for file in sorted(folder.glob("*.yaml"))
    }


def this_platform() -> str:
    """Return the platform as recipes name it, such as `linux-x86_64`."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{_MACHINES.get(machine, machine)}"


def how_to(recipe: Recipe) -> str:
    """Return a sentence with the command that installs the runtime and its cost."""
    build = recipe.build()
    if build is None:
        return f"{recipe.title} is not available for {this_platform()}."
    note = f" {recipe.note}" if recipe.note else ""
    return f"Install it: `{command(f'runtimes install {recipe.name}')}` ({costs(build)}).{note}"


def install_hint(names: Iterable[str], backend: str, lacks: Mapping[str, str]) -> str:
    """Return sentences on how to let one of the engines `names` run on a backend that none of them runs on yet.

    `lacks` has, by engine, why a runtime that reaches the device does not provide the engine.
    """
    names = list(names)
    if why := next((lacks[name] for name in names if name in lacks), None):
        return f"{why} Or choose another device."
    if (recipe := runtime_for(names, backend)) and (build := recipe.build()):
        install = command(f"runtimes install {recipe.name}")
        return f"Install its runtime: `{install}` ({costs(build)}), or choose another device."
    return "Choose another device or model, or leave out the engine."


def runtime_for(names: Iterable[str], backend: str) -> Recipe | None:
    """Return the first runtime of a backend, available on this platform, in which one of the engines `names` runs."""
    facts = [engines()[name] for name in names if name in engines()]
    wanted = {runtime for engine in facts if backend in engine.backends for runtime in engine.runtimes}
    offered = [recipes()[name] for name in backends()[backend].runtimes if name in wanted and name in recipes()]
    return next((recipe for recipe in offered if recipe.build()), None)


def costs(build: Build) -> str:
    """Return download size, time and disk space as text."""
    minutes = max(1, round(build.download_bytes / LINE_BYTES_PER_S / 60))
    return f"{size(build.download_bytes)} to download, {minutes} min at 10 MB/s, {size(build.installed_bytes)} on disk"


def size(count: float) -> str:
    """Return a number of bytes as text."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


@cache
def _base() -> dict[str, list[str]]:
    """Return the lines of requirements.txt by the name of their distribution."""
    lines: dict[str, list[str]] = {}
    for line in base_requirements():
        if match := _DISTRIBUTION.match(line):
            lines.setdefault(match[0], []).append(line)
    return lines
