"""The manager: one owner of devices, models, workers and jobs (`ModelManager`), and the services that it wires.

`ModelManager` is imported when it is first used, so that a program that needs one module of this package does not load
the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backend.manager.model_manager import ModelManager as ModelManager

__all__ = ["ModelManager"]


def __getattr__(name: str) -> type[ModelManager]:
    if name != "ModelManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from backend.manager.model_manager import ModelManager

    return ModelManager
