"""Install runtimes with a child process: first resolve a lock file, whose hash names the version, then install from it.

`lock` and `make` do not depend on the purpose of a recipe, so other parts use them for their environments too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from backend.child.handle import Spawn
from backend.child.install.local_versions import find_other_builds
from backend.child.install.orders import (
    EnvironmentFacts,
    InstallOrder,
    LockOrder,
    LockResult,
    MakeOrder,
    MakeResult,
    VendorIndex,
)
from backend.child.one_shot import run_one_shot
from backend.common.commands import command
from backend.common.errors import DiskFull, RuntimeFailed, TouchstoneError, Validation
from backend.common.installer_errors import without_credentials
from backend.common.timestamps import utc_now
from backend.common.types import Progress
from backend.runtimes.lock_files import Lock, read_lock
from backend.runtimes.recipes import Build, Recipe, size
from backend.runtimes.store import InstalledRuntime, RuntimeStore

log = logging.getLogger(__name__)

UV = "uv==0.13.9"
MARGIN_BYTES = 200_000_000  # disk space reserved for the rest of the service
OnProgress = Callable[[Progress], Awaitable[None]]


class RuntimeInstaller:
    """Installs versions of runtimes. `tools` is the folder for uv and for Python interpreters that it downloads."""

    def __init__(
        self, shelf: RuntimeStore, tools: Path, spawn: Spawn, free_bytes: Callable[[Path], int] | None = None
    ) -> None:
        self._shelf = shelf
        self._tools = tools.absolute()
        self._spawn = spawn
        self._free_bytes = free_bytes or (lambda folder: shutil.disk_usage(folder).free)

    async def lock(
        self, recipe: Recipe, on_progress: OnProgress, architecture: str | None = None, mirror: str | None = None
    ) -> tuple[Lock, EnvironmentFacts]:
        """Resolve a recipe for this machine; return the lock and the further facts that `make` needs.

        `mirror`: optional, the URL of an index that replaces the vendor's. Raises RuntimeFailed, DiskFull, Validation.
        """
        build = buildable(recipe)
        if recipe.by_chip and not architecture:
            raise Validation(
                f"The packages of {recipe.name} depend on the card's chip, but no card was detected.",
                f"`{command('devices')}` lists why no card is detected.",
            )
        self.check_space(recipe, build)
        work = self._shelf.root / recipe.name / "new.lock"
        order: LockOrder = {
            **self._order(recipe, build, work, _vendor_index(build, mirror)),
            "python": _own_python(recipe),
            "request": recipe.python[1],
            "requirements": recipe.lines(architecture),
            "libraries": recipe.libraries,
            "local": build.local,
        }
        answer = await run_one_shot(self._spawn, ["install", "lock"], _line(order), on_progress, result=LockResult)
        lock = read_lock(answer["lock"], answer["python"], answer["libraries"])
        check_builds(recipe, build, lock, order["index"], answer["extra"])
        target = self._shelf.lock_file(recipe.name, lock.digest).parent
        await asyncio.to_thread(_replace_folder, work, target)
        log.info(
            "runtime resolved",
            extra={"runtime": recipe.name, "version": lock.digest, "download_bytes": lock.download_bytes},
        )
        return lock, {"python": answer["python"], "extra": answer["extra"], "index": order["index"]}

    async def make(
        self, recipe: Recipe, lock: Lock, about: EnvironmentFacts, on_progress: OnProgress
    ) -> InstalledRuntime:
        """Install the version of a lock, without a manifest and not yet current. A partial one is left in place.

        Raises RuntimeFailed, DiskFull, Validation, WorkerCrashed.
        """
        build = buildable(recipe)
        folder = await asyncio.to_thread(self._shelf.clear, recipe.name, lock.digest)
        order: MakeOrder = {
            **self._order(recipe, build, folder, about["index"]),
            **about,
            "lock": str(self._shelf.lock_file(recipe.name, lock.digest)),
        }
        fields = {"runtime": recipe.name, "version": lock.digest}
        log.info("install started", extra={**fields, "download_bytes": lock.download_bytes})
        started_at = time.monotonic()
        try:
            answer = await run_one_shot(self._spawn, ["install", "make"], _line(order), on_progress, result=MakeResult)
        except TouchstoneError as error:
            log.warning("install failed", extra={**fields, "code": error.code, "reason": error.detail})
            raise
        seconds = round(time.monotonic() - started_at, 1)
        log.info("install finished", extra={**fields, "bytes": answer["bytes"], "seconds": seconds})
        python, size_bytes = answer["python"], answer["bytes"]
        return InstalledRuntime(lock.digest, python, lock.packages, size_bytes, utc_now(), about["extra"])

    def check_space(self, recipe: Recipe, build: Build) -> None:
        """Check the free disk space for an installation. Raises DiskFull, RuntimeFailed."""
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
                f"The runtime {recipe.name} needs {size(needed)}; {self._shelf.root} has {size(free)} free.",
                f"Free some space, remove a runtime (`{command('runtimes remove NAME')}`), or set TOUCHSTONE_DATA_DIR "
                "to a folder on another disk.",
            )

    def _order(self, recipe: Recipe, build: Build, folder: Path, index: VendorIndex | None) -> InstallOrder:
        return {
            "name": recipe.name,
            "folder": str(folder),
            "cache": str(self._shelf.cache),
            "tools": str(self._tools),
            "uv": UV,
            "index": index,
            "installed_bytes": build.installed_bytes,
        }


def buildable(recipe: Recipe) -> Build:
    """Return how the recipe is installed on this platform. Raises Validation if it cannot be."""
    build = recipe.build()
    if recipe.own:
        raise Validation(f"The runtime {recipe.name} cannot be installed by Touchstone: {recipe.own}", _own(recipe))
    if build is None:
        raise Validation(
            f"The runtime {recipe.name} is not available for this platform ({sysconfig.get_platform()}).",
            f"`{command('runtimes')}` lists the available ones. Or use your own environment. {_own(recipe)}",
        )
    return build


def check_builds(recipe: Recipe, build: Build, lock: Lock, index: VendorIndex | None, is_vendor: bool) -> None:
    """Check by their local versions that the locked packages are the builds of the recipe. Raises RuntimeFailed.

    Several indexes have a `torch`, each for other hardware; so this is checked before anything is downloaded.
    """
    for name, version in find_other_builds(lock.packages, build.local).items():
        wanted = " or ".join(f"+{each}…" if each else "no local part" for each in build.local[name])
        url = without_credentials(index["url"]) if index else ""
        source = "the package index"
        if index and not is_vendor:
            source = f"{url} could not be reached, and your package index"
        raise RuntimeFailed(
            f"The runtime {recipe.name} requires a build of {name} whose version has {wanted}; {source} has "
            f"{f'{name} {version}' if version else f'no {name}'}. Nothing was downloaded.",
            f"Check the access to {url or 'the package index'} and your own index (`pip config list`). For a mirror "
            f"set `runtimes: {{{recipe.name}: {{index: URL}}}}` in config.yaml. Then install again.",
        )


def _vendor_index(build: Build, mirror: str | None) -> VendorIndex | None:
    """Return the index of a build, or the mirror that the settings name instead."""
    if build.index:
        vendor = build.index
        return {"url": mirror or vendor.url, "packages": vendor.packages, "sources": vendor.sources}
    return {"url": mirror, "packages": [], "sources": []} if mirror else None


def _own(recipe: Recipe) -> str:
    return f"Set the Python of your environment in config.yaml: `runtimes: {{{recipe.name}: {{python: …}}}}`."


def _own_python(recipe: Recipe) -> str | None:
    """Return the interpreter that `.venv` was created from, if its version suits the runtime. None otherwise."""
    first, last = (tuple(map(int, version.split("."))) for version in recipe.python)
    fits = first <= sys.version_info[:2] <= last
    return str(getattr(sys, "_base_executable", sys.executable)) if fits else None


def _line(order: InstallOrder) -> bytes:
    return json.dumps(order).encode() + b"\n"


def _replace_folder(fresh: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)
