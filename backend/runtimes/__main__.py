"""`python -m backend.runtimes NAME [CHIP]`: what a runtime is made of, as a requirements file; the Dockerfile asks."""

from __future__ import annotations

import sys

from backend.runtimes.recipes import recipes


def requirements(name: str, chip: str | None) -> str:
    """The lines. Raises ValueError in words for a runtime that cannot be made here."""
    recipe = recipes().get(name)
    build = recipe.build() if recipe else None
    if recipe is None or build is None:
        made = ", ".join(known for known, one in recipes().items() if one.build())
        raise ValueError(f"{name!r} is no runtime that can be made here: name one of {made}.")
    if recipe.by_chip and not chip:
        raise ValueError(f"{name} depends on the card's chip: name it, as in gfx1100.")
    index = [f"--extra-index-url {build.index}"] if build.index else []
    return "\n".join([*index, *recipe.lines(chip)]) + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(requirements(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
    except (ValueError, IndexError) as error:
        sys.exit(str(error))
