"""`python -m tests.slow.runtimes [NAME …]`: the packages of each runtime resolve on every platform and Python it names.

Prints a row per runtime and platform: the Pythons, the lowest glibc, the number of packages and their size. Nothing is
installed. If a vendor's index cannot be reached, the packages are resolved without it, and the row says so.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

from backend.child.download.errors import Refused
from backend.child.install.orders import LockOrder, VendorIndex
from backend.child.install.package_index import configured, environment, pip_settings
from backend.child.install.resolution import Resolver
from backend.child.install.uv import Uv
from backend.common.errors import RuntimeFailed
from backend.common.installation import base_requirements
from backend.models import conversion
from backend.runtimes.installer import check_builds
from backend.runtimes.lock_files import Lock, read_lock
from backend.runtimes.recipes import Build, Platform, Recipe, read_recipes, recipes

CHIP = "gfx1100"
GLIBCS = (28, 31, 34, 35, 39)  # Debian 10, 11; RHEL 9; Ubuntu 22.04, 24.04
SYSTEMS = {
    "linux-x86_64": "x86_64-manylinux_2_{glibc}",
    "linux-aarch64": "aarch64-manylinux_2_{glibc}",
    "win32-x86_64": "x86_64-pc-windows-msvc",
    "win32-aarch64": "aarch64-pc-windows-msvc",
    "darwin-aarch64": "aarch64-apple-darwin",
    "darwin-x86_64": "x86_64-apple-darwin",
}


def base(first: str, last: str, *platforms: Platform) -> Recipe:
    """`.venv` as a recipe, for the Pythons that the launchers accept (backend/cli/launcher/interpreter.py)."""
    builds = [Build(platforms=list(platforms), download_bytes=1, installed_bytes=1, known="")]
    return Recipe("base", "", [first, last], requirements=base_requirements(), builds=builds, name="base")


BASE = [
    base("3.11", "3.14", "linux-x86_64", "linux-aarch64", "win32-x86_64", "darwin-aarch64"),
    base("3.12", "3.14", "win32-aarch64"),
    base("3.11", "3.13", "darwin-x86_64"),
]
INDEX = configured(pip_settings(), os.environ)
UV = Uv(
    shutil.which("uv", path=sysconfig.get_path("scripts")) or "uv",
    environment(INDEX, {"MACOSX_DEPLOYMENT_TARGET": "14.0"}),
)


def main(names: list[str]) -> int:
    """Print the rows; return 1 if any combination fails."""
    failed = 0
    print("| runtime | platform | Python | glibc | packages | without the index |\n|---|---|---|---|---|---|")
    for recipe in [*BASE, *recipes().values(), *read_recipes(conversion.DATA).values()]:
        for build in recipe.builds if not names or recipe.name in names else []:
            for system in build.platforms:
                row, faults = tried(recipe, build, system)
                failed += len(faults)
                print("\n".join([row, *faults]), flush=True)
    return 1 if failed else 0


def tried(recipe: Recipe, build: Build, system: str) -> tuple[str, list[str]]:
    """Return the row of a build on a platform, and its failures."""
    good: list[str] = []
    faults: list[str] = []
    highest, lock = 0, None
    for minor in range(int(recipe.python[0].split(".")[1]), int(recipe.python[1].split(".")[1]) + 1):
        python = f"3.{minor}"
        try:
            glibc, lock = with_lowest_glibc(recipe, build, system, python)
        except (Refused, RuntimeFailed) as error:
            faults.append(f"FAILED {recipe.name} {system} {python}: {error.detail}")
            continue
        good.append(python)
        highest = max(highest, glibc)
    libc = f"2.{highest}" if highest else ""
    packages = f"{len(lock.packages)}, {(lock.download_bytes or 0) / 1e6:.0f} MB" if lock else ""
    left_out = build.index.url if build.index and not reachable(build.index.url) else ""
    return f"| {recipe.name} | {system} | {', '.join(good)} | {libc} | {packages} | {left_out} |", faults


def with_lowest_glibc(recipe: Recipe, build: Build, system: str, python: str) -> tuple[int, Lock]:
    """Return the lowest minor version of glibc for which the packages resolve, 0 elsewhere, and the lock."""
    if not system.startswith("linux"):
        return 0, resolved(recipe, build, SYSTEMS[system], python)
    for glibc in GLIBCS:
        try:
            return glibc, resolved(recipe, build, SYSTEMS[system].format(glibc=glibc), python)
        except Refused:
            if glibc == GLIBCS[-1]:
                raise
    raise AssertionError(system)


def resolved(recipe: Recipe, build: Build, platform: str, python: str) -> Lock:
    """Return the lock for a platform of uv and a Python. Raises Refused, RuntimeFailed."""
    index: VendorIndex | None = None
    if build.index and reachable(build.index.url):
        index = {"url": build.index.url, "packages": build.index.packages, "sources": build.index.sources}
    order: LockOrder = {
        "name": recipe.name,
        "folder": "",
        "cache": "",
        "tools": "",
        "uv": "",
        "index": index,
        "installed_bytes": 0,
        "python": None,
        "request": "",
        "requirements": recipe.lines(CHIP),
        "libraries": recipe.libraries,
        "local": build.local,
    }
    target = ["--python-platform", platform, "--python-version", python]
    with tempfile.TemporaryDirectory() as folder:
        resolver = Resolver(order, INDEX, UV, sys.executable)
        text, _ = resolver.resolve(order["requirements"], Path(folder, "pylock.toml"), target)
        libraries = None
        if recipe.libraries:
            target = ["--python-platform", platform, "--python-version", "3.14", "--no-deps"]
            libraries, _ = resolver.resolve(recipe.libraries, Path(folder, "pylock.libraries.toml"), target)
    lock = read_lock(text, python, libraries)
    if index or not build.index:
        check_builds(recipe, build, lock, index, index is not None)
    return lock


@cache
def reachable(url: str) -> bool:
    """Return whether an index answers."""
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
