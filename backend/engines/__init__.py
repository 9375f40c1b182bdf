"""Engines: one file per way to run models. A new engine is a new file here.

An engine file defines `ENGINE: Engine` and the functions `estimate_bytes`, `check` and `load` (the protocol
`EngineModule`). Third-party imports are inside functions: the server reads the facts without the library.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from backend.common.engine_api import (
    ConvertedForm,
    Emit,
    Engine,
    EngineModule,
    FolderDownload,
    LoadRequest,
    ModelFormat,
    RunRequest,
    RunResult,
    Session,
)
from backend.devices import backends

__all__ = [
    "ConvertedForm",
    "Emit",
    "Engine",
    "EngineModule",
    "FolderDownload",
    "LoadRequest",
    "ModelFormat",
    "RunRequest",
    "RunResult",
    "Session",
    "engines",
    "load_engine",
    "model_formats",
    "serves",
]


@cache
def engines() -> dict[str, Engine]:
    """Return the facts of all engines by name, found by listing this folder."""
    return {module.ENGINE.name: module.ENGINE for module in _modules().values()}


def load_engine(name: str) -> EngineModule:
    """Return the module of the engine with this name. Raises KeyError."""
    module: EngineModule = next(module for module in _modules().values() if module.ENGINE.name == name)
    return module


@cache
def model_formats() -> tuple[ModelFormat, ...]:
    """Return the formats of all engines, each once."""
    return tuple(dict.fromkeys(each for engine in engines().values() for each in engine.formats))


def serves(engine: Engine, runtime: str) -> bool:
    """Return whether an engine runs in a runtime: one that it names, or one of the user with its own name."""
    return runtime in engine.runtimes or runtime not in _known_runtimes()


@cache
def _known_runtimes() -> frozenset[str]:
    declared = [facts.runtimes for facts in engines().values()] + [facts.runtimes for facts in backends().values()]
    return frozenset(runtime for runtimes in declared for runtime in runtimes)


@cache
def _modules() -> dict[str, ModuleType]:
    names = [entry.name for entry in pkgutil.iter_modules(__path__) if not entry.name.startswith("_")]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
