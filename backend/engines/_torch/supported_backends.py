"""Where engines on torch run: each backend that some build of torch reaches, in each runtime that has one."""

from __future__ import annotations

from collections.abc import Iterable

from backend.devices import backends, backends_of, libraries


def reached(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The backends that builds of these libraries reach, and the runtimes that have one."""
    found = tuple(dict.fromkeys(name for library in names for name in backends_of(library)))
    return found, tuple(dict.fromkeys(each for name in found for each in backends()[name].runtimes if each != "base"))


BACKENDS, RUNTIMES = reached(library for library in libraries() if library.startswith("torch"))
# Without what extends torch, which is bound to an old one.
NEW_BACKENDS, NEW_RUNTIMES = reached(["torch"])
LIBRARY_BYTES = 400_000_000  # the library itself, in memory
