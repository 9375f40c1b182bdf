"""Makes environments on the shelf by the installing child: a lock first, whose hash names the version, then the rest.

Whoever needs an environment of another kind can use this as well: `lock` and `make` know nothing of recipes' purposes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from backend.child.handle import Spawn
from backend.child.one_shot import run_one_shot
from backend.common.errors import DiskFull, RuntimeFailed, Validation
from backend.common.timestamps import utc_now
from backend.common.types import Progress
from backend.runtimes.lock_files import Lock, read_lock
from backend.runtimes.recipes import Build, Recipe, size
from backend.runtimes.store import InstalledRuntime, RuntimeStore

UV = "uv==0.13.9"
MARGIN_BYTES = 200_000_000  # that the rest of the service keeps
OnProgress = Callable[[Progress], Awaitable[None]]


class RuntimeInstaller:
    """Makes versions of runtimes. `tools` is the folder for uv and for Pythons that it fetches."""

    def __init__(
        self, shelf: RuntimeStore, tools: Path, spawn: Spawn, free_bytes: Callable[[Path], int] | None = None
    ) -> None:
        self._shelf = shelf
        self._tools = tools.absolute()
        self._spawn = spawn
        self._free_bytes = free_bytes or (lambda folder: shutil.disk_usage(folder).free)

    async def lock(
        self, recipe: Recipe, on_progress: OnProgress, architecture: str | None = None, index: str | None = None
    ) -> tuple[Lock, dict[str, Any]]:
        """Resolves a recipe for this machine; gives the lock and what `make` needs to know besides.

        `index` is the user's in place of the recipe's. Raises RuntimeFailed, DiskFull, Validation.
        """
        build = buildable(recipe)
        if recipe.by_chip and not architecture:
            raise Validation(
                f"What {recipe.name} is made of depends on the card's chip, and no chip is known here.",
                "See `devices` for what keeps the card from being seen.",
            )
        self.check_space(recipe, build)
        work = self._shelf.root / recipe.name / "new.lock"
        order = self._order(recipe, build, work, index)
        order |= {"python": _own_python(recipe), "request": recipe.python[1], "upgrade": True}
        order |= {"requirements": recipe.lines(architecture)}
        said = await run_one_shot(self._spawn, ["install", "lock"], _line(order), on_progress)
        lock = read_lock(said["lock"], said["python"])
        kept = self._shelf.lock_file(recipe.name, lock.digest).parent
        await asyncio.to_thread(_replace_folder, work, kept)
        return lock, {"python": said["python"], "extra": said["extra"], "index": order["index"]}

    async def make(
        self, recipe: Recipe, lock: Lock, about: dict[str, Any], on_progress: OnProgress
    ) -> InstalledRuntime:
        """Makes the version of a lock, which is not current yet and has no manifest. What is half made is left there.

        Raises RuntimeFailed, DiskFull, Validation, WorkerCrashed.
        """
        build = buildable(recipe)
        folder = await asyncio.to_thread(self._shelf.clear, recipe.name, lock.digest)
        order = self._order(recipe, build, folder, about["index"])
        order |= {**about, "lock": str(self._shelf.lock_file(recipe.name, lock.digest))}
        said = await run_one_shot(self._spawn, ["install", "make"], _line(order), on_progress)
        return InstalledRuntime(lock.digest, said["python"], lock.packages, said["bytes"], utc_now(), about["extra"])

    def check_space(self, recipe: Recipe, build: Build) -> None:
        """Raises DiskFull where it would not fit beside what is here."""
        try:
            self._shelf.root.mkdir(parents=True, exist_ok=True)
            free = self._free_bytes(self._shelf.root)
        except OSError as error:
            raise RuntimeFailed(
                f"The folder {self._shelf.root} cannot be used: {error.strerror}.",
                "Make the data folder writable, or set TOUCHSTONE_DATA_DIR to another one.",
            ) from error
        needed = build.installed_bytes + MARGIN_BYTES
        if free < needed:
            raise DiskFull(
                f"The runtime {recipe.name} needs {size(needed)}, and {self._shelf.root} has {size(free)} free.",
                "Free some space, remove a runtime (`runtimes remove NAME`), or set TOUCHSTONE_DATA_DIR to a folder on "
                "another disk.",
            )

    def _order(self, recipe: Recipe, build: Build, folder: Path, index: str | None) -> dict[str, Any]:
        return {
            "name": recipe.name,
            "folder": str(folder),
            "cache": str(self._shelf.cache),
            "tools": str(self._tools),
            "uv": UV,
            "index": index or build.index,
            "installed_bytes": build.installed_bytes,
        }


def buildable(recipe: Recipe) -> Build:
    """How the recipe is made here. Raises Validation where it cannot be."""
    build = recipe.build()
    if recipe.own:
        raise Validation(f"The runtime {recipe.name} cannot be installed by Touchstone: {recipe.own}", _own(recipe))
    if build is None:
        raise Validation(
            f"The runtime {recipe.name} is not to be had for this system ({sysconfig.get_platform()}).",
            f"`runtimes` lists what is; one of your own can be named: {_own(recipe)}",
        )
    return build


def _own(recipe: Recipe) -> str:
    return f"Name the Python of your own environment in config.yaml: `runtimes: {{{recipe.name}: {{python: …}}}}`."


def _own_python(recipe: Recipe) -> str | None:
    """The interpreter that `.venv` was made from, if the runtime runs with that version."""
    first, last = (tuple(map(int, version.split("."))) for version in recipe.python)
    fits = first <= sys.version_info[:2] <= last
    return str(getattr(sys, "_base_executable", sys.executable)) if fits else None


def _line(order: dict[str, Any]) -> bytes:
    return json.dumps(order).encode() + b"\n"


def _replace_folder(fresh: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)
