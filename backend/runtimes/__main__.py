"""`python -m backend.runtimes NAME [CHIP]`: print a runtime's packages as a requirements file, for the Dockerfile."""

from __future__ import annotations

import sys

from backend.runtimes.recipes import recipes


def requirements(name: str, chip: str | None) -> str:
    """Return the lines of the requirements file. Raises ValueError for a runtime that cannot be installed here."""
    recipe = recipes().get(name)
    build = recipe.build() if recipe else None
    if recipe is None or build is None:
        buildable = ", ".join(other for other, each in recipes().items() if each.build())
        raise ValueError(f"{name!r} is not a runtime for this platform. Available: {buildable}.")
    if recipe.by_chip and not chip:
        raise ValueError(f"{name} depends on the card's chip: add it as a second argument, such as gfx1100.")
    index = [f"--extra-index-url {build.index}"] if build.index else []
    return "\n".join([*index, *recipe.lines(chip)]) + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(requirements(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
    except (ValueError, IndexError) as error:
        sys.exit(str(error))
