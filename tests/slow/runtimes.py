"""`python -m tests.slow.runtimes [NAME …]`: the packages of each runtime resolve on every platform that it names.

uv resolves for the other system, then pip, which reads an index in its own way, has to find a wheel for each version
that uv chose. Nothing is installed, and no wheel is kept. An index that cannot be reached is skipped, with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

from backend.child.install.errors import is_unreachable, telling_line
from backend.child.install.package_index import configured, pip_settings
from backend.runtimes.lock_files import Lock, read_lock
from backend.runtimes.recipes import Build, Recipe, recipes

CHIP = "gfx1100"
GLIBC = 39  # 2.39: what Ubuntu 24.04 has
SYSTEMS = {
    "linux-x86_64": (f"x86_64-manylinux_2_{GLIBC}", "x86_64"),
    "linux-aarch64": (f"aarch64-manylinux_2_{GLIBC}", "aarch64"),
    "win32-x86_64": ("x86_64-pc-windows-msvc", "win_amd64"),
    "win32-aarch64": ("aarch64-pc-windows-msvc", "win_arm64"),
    "darwin-aarch64": ("aarch64-apple-darwin", "macosx_14_0_arm64"),
}
INDEX = configured(pip_settings(), os.environ)
UV = shutil.which("uv", path=sysconfig.get_path("scripts")) or "uv"


class Skipped(Exception):
    """It cannot be looked at from here."""


def main(names: list[str]) -> int:
    """Prints a line a runtime and system; 1 if any fails."""
    failed = 0
    for recipe in recipes().values():
        for build in recipe.builds if not names or recipe.name in names else []:
            for system in build.platforms:
                try:
                    lock = resolved(recipe, build, system)
                    found_by_pip(recipe, build, system, lock)
                    said = f"{len(lock.packages)} packages" + (
                        f", {lock.download_bytes / 1e6:.0f} MB" if lock.download_bytes else ""
                    )
                except Skipped as reason:
                    said = f"skipped: {reason}"
                except ValueError as error:
                    failed += 1
                    said = f"FAILED: {error}"
                print(f"{recipe.name:14} {system:15} Python {python_of(recipe):5} {said}", flush=True)
    return 1 if failed else 0


def python_of(recipe: Recipe) -> str:
    """The newest of its Pythons that a server here may have, or its newest."""
    return min(recipe.python[1], "3.13", key=lambda version: int(version.split(".")[1]))


def resolved(recipe: Recipe, build: Build, system: str) -> Lock:
    """What uv chooses. Raises ValueError, Skipped."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, lock = Path(folder, "requirements.in"), Path(folder, "pylock.toml")
        wanted.write_text("\n".join(recipe.lines(CHIP)) + "\n")
        command = [UV, "pip", "compile", str(wanted), "--python-platform", SYSTEMS[system][0]]
        command += ["--python-version", python_of(recipe), "--format", "pylock.toml", "--output-file", str(lock)]
        command += ["--only-binary", ":all:", "--index-strategy", "unsafe-best-match", "--quiet", "--no-header"]
        command += [*(["--index", build.index] if build.index else []), *INDEX.options]
        environment = {**os.environ, **INDEX.environment, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode and is_unreachable(done.stderr):
            raise Skipped(f"{build.index or 'the package index'} was not reached ({telling_line(done.stderr)})")
        if done.returncode:
            raise ValueError(telling_line(done.stderr))
        return read_lock(lock.read_text(), python_of(recipe))


def found_by_pip(recipe: Recipe, build: Build, system: str, lock: Lock) -> None:
    """Raises ValueError where pip knows no wheel of a version for that system."""
    for name, version in lock.packages.items():
        if version not in versions(name, system, python_of(recipe), build.index):
            raise ValueError(f"pip knows no wheel of {name} {version}")


@cache
def versions(name: str, system: str, python: str, index: str | None) -> frozenset[str]:
    """Those of which pip sees a wheel for that system and Python; it looks at the index alone and fetches none."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--pre", "--only-binary", ":all:"]
    command += ["--python-version", python, "--implementation", "cp"]
    command += [word for tag in tags(system) for word in ("--platform", tag)]
    command += ["--extra-index-url", index] if index else []
    done = subprocess.run([*command, "--disable-pip-version-check"], capture_output=True, text=True)
    listed = next((line for line in done.stdout.splitlines() if line.startswith("Available versions:")), "")
    return frozenset(word.strip() for word in listed.removeprefix("Available versions:").split(","))


def tags(system: str) -> list[str]:
    """The platforms whose wheels run there."""
    name = SYSTEMS[system][1]
    if not system.startswith("linux"):
        return [name]
    old = ["manylinux1", "manylinux2010", "manylinux2014"]
    return [f"{tag}_{name}" for tag in (*old, *(f"manylinux_2_{minor}" for minor in range(5, GLIBC + 1)), "linux")]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
