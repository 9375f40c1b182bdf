"""The backends and runtimes of engines on torch: those that some build of torch reaches."""

from __future__ import annotations

from collections.abc import Iterable

from backend.devices import backends, backends_of, libraries, llama_runtimes


def reached(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the backends that builds of these libraries reach, and the runtimes that have such a build."""
    reachable = tuple(dict.fromkeys(name for library in names for name in backends_of(library)))
    others = {"base", *llama_runtimes()}
    named = (runtime for name in reachable for runtime in backends()[name].runtimes)
    return reachable, tuple(dict.fromkeys(runtime for runtime in named if runtime not in others))


BACKENDS, RUNTIMES = reached(library for library in libraries() if library.startswith("torch"))
# Without extensions of torch, which need an old version of it.
NEW_BACKENDS, NEW_RUNTIMES = reached(["torch"])
LIBRARY_BYTES = 400_000_000  # the library itself, in memory
