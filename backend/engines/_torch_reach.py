"""Where engines on torch run: each backend that some build of torch reaches, in each runtime that has one."""

from __future__ import annotations

from backend.devices import backends, backends_of, libraries

_TORCHES = [library for library in libraries() if library.startswith("torch")]
BACKENDS = tuple(dict.fromkeys(name for library in _TORCHES for name in backends_of(library)))
RUNTIMES = tuple(dict.fromkeys(each for name in BACKENDS for each in backends()[name].runtimes if each != "base"))
LIBRARY_BYTES = 400_000_000  # the library itself, in memory
