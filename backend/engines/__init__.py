"""Engines: one file a way to run models. A new engine is a new file here.

An engine file has `ENGINE: Engine`, and functions `estimate_bytes`, `check`, `load` (the protocol `EngineModule`).
Third-party imports stand inside functions: the server reads the facts without the library.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from backend.common.engine_api import Emit, Engine, EngineModule, LoadRequest, RunRequest, RunResult, Session
from backend.devices import backends

__all__ = [
    "Emit",
    "Engine",
    "EngineModule",
    "LoadRequest",
    "RunRequest",
    "RunResult",
    "Session",
    "engines",
    "load_engine",
    "serves",
]


@cache
def engines() -> dict[str, Engine]:
    """Facts of all engines by name, found by listing this folder."""
    return {module.ENGINE.name: module.ENGINE for module in _modules().values()}


def load_engine(name: str) -> EngineModule:
    """The module of the engine with this name. Raises KeyError."""
    module: EngineModule = next(module for module in _modules().values() if module.ENGINE.name == name)
    return module


def serves(engine: Engine, runtime: str) -> bool:
    """Whether an engine may be used in a runtime: in one that it names, and in a user's own of a name unknown here."""
    return runtime in engine.runtimes or runtime not in _known_runtimes()


@cache
def _known_runtimes() -> frozenset[str]:
    named = [facts.runtimes for facts in engines().values()] + [facts.runtimes for facts in backends().values()]
    return frozenset(runtime for runtimes in named for runtime in runtimes)


@cache
def _modules() -> dict[str, Any]:
    names = [entry.name for entry in pkgutil.iter_modules(__path__) if not entry.name.startswith("_")]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
