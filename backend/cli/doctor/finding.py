"""What the doctor has to say about one thing: how bad, which layer fails, and the steps that mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# stops: nothing can run, or nothing can be kept. broken: something that is here does not work. advice: it works, but.
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
Place = Literal["here", "windows"]  # under WSL the Windows around this Linux must sometimes act

LEVELS: tuple[Level, ...] = ("stops", "broken", "advice")


@dataclass(frozen=True)
class Step:
    """One thing to do: a sentence, the command where there is one, and on which side."""

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
