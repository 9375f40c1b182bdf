"""`python -m backend.runtimes NAME FOLDER [CHIP]`: install a runtime into a folder and print its interpreter.

For the Dockerfile: the packages are locked and checked like those of `runtimes install`, but no device is proved.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from backend.child import handle
from backend.common.errors import TouchstoneError
from backend.common.types import Progress
from backend.runtimes.installer import RuntimeInstaller
from backend.runtimes.recipes import recipes
from backend.runtimes.store import RuntimeStore


async def install(name: str, folder: Path, chip: str | None = None) -> str:
    """Return the interpreter of the new environment. Raises ValueError, TouchstoneError."""
    recipe = recipes().get(name)
    if recipe is None or recipe.build() is None:
        buildable = ", ".join(other for other, each in recipes().items() if each.build())
        raise ValueError(f"{name!r} is not a runtime for this platform. Available: {buildable}.")
    if recipe.by_chip and not chip:
        raise ValueError(f"{name} depends on the card's chip: add it as a third argument, such as gfx1100.")
    installer = RuntimeInstaller(RuntimeStore(folder), folder / "tools", handle.spawn)
    lock, about = await installer.lock(recipe, _ignore, chip)
    for package, version in lock.packages.items():
        sys.stderr.write(f"{package}=={version}\n")
    installed = await installer.make(recipe, lock, about, _ignore)
    return installed.python


async def _ignore(_: Progress) -> None:
    """Show no progress."""


if __name__ == "__main__":
    try:
        name, folder, *rest = sys.argv[1:]
        sys.stdout.write(asyncio.run(install(name, Path(folder), *rest)) + "\n")
    except TouchstoneError as error:
        sys.exit(f"{error.detail} {error.remedy}")
    except ValueError as error:
        sys.exit(str(error))
