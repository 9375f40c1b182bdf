"""One entry of the table of known errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Layer = Literal["hardware", "driver", "runtime package", "library load", "computation", "permission"]
Code = Literal["out_of_memory", "device_lost"]
ANY = "any"


@dataclass(frozen=True)
class KnownError:
    """A message, its meaning and its remedy.

    `pattern` is a regular expression without regard to case; its named groups are fields of the remedy. `remedy` is
    one text, or a text by system: `container`, `wsl`, `win32`, `darwin`, `linux`, and `any` for the rest. `layer` is
    None if it depends on what the process was doing. `absent`: something is missing rather than broken. `code`:
    optional, the error code of a job that ends with such a message. `source`: a public thread or page with the
    message; empty for texts of Touchstone itself. `lines`: how many lines of the message belong together.
    """

    name: str
    pattern: str
    remedy: str | Mapping[str, str]
    layer: Layer | None = None
    absent: bool = True
    code: Code | None = None
    source: str = ""
    lines: int = 1

    def remedy_on(self, system: str) -> str:
        """Return the remedy's text for a system, with its fields not yet filled."""
        return self.remedy if isinstance(self.remedy, str) else self.remedy.get(system, self.remedy[ANY])
