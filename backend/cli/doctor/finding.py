"""One finding of the doctor: its level, the layer that fails, and the steps that fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# stops: jobs cannot run or be stored. broken: something installed does not work. advice: it works, with a drawback.
Level = Literal["stops", "broken", "advice"]
Layer = Literal[
    "system",
    "hardware",
    "driver",
    "permission",
    "library load",
    "runtime package",
    "computation",
    "settings",
    "storage",
    "server",
    "model",
]
Place = Literal["here", "windows"]  # under WSL some steps are done in Windows

LEVELS: tuple[Level, ...] = ("stops", "broken", "advice")


@dataclass(frozen=True)
class Step:
    """One thing to do: a sentence, optionally a command, and the system to do it in."""

    do: str
    command: str | None = None
    where: Place = "here"


@dataclass(frozen=True)
class Finding:
    """`subject` is a device or hardware id, `runtime:NAME`, `model:ID`, or the layer's own name."""

    code: str
    level: Level
    layer: Layer
    subject: str
    detail: str
    steps: tuple[Step, ...] = ()
