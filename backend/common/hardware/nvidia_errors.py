"""Which known errors NVIDIA's tool nvidia-smi reports instead of facts, and their meaning as a clause."""

from __future__ import annotations

from dataclasses import dataclass

from backend.common.known_errors.known_error import KnownError
from backend.common.known_errors.table import KNOWN_ERRORS, find

# By the entry's name. The remedies of these entries have no fields: the inventory knows no interpreter.
MEANINGS = {
    "driver-mismatch": "the driver in the kernel has another version than its libraries",
    "nvml-unknown": "NVIDIA's library cannot open the driver",
    "windows-blocks-card": "Windows blocks access to the card",
    "module-not-loaded": "the driver is not loaded",
    "nvml-missing": "NVIDIA's library NVML is missing",
    "nvml-denied": "this user has no permission to use the driver",
    "driver-lists-no-card": "the driver lists no card",
    "gpu-lost": "the card has fallen off the bus",
    "gpu-reset-required": "the card must be reset",
    "gpu-silent": "the card does not answer",
    "power-cable": "a power cable of the card is not connected",
}
_OF_ONE_CARD = ("gpu-lost", "gpu-reset-required", "gpu-silent", "power-cable")


@dataclass(frozen=True)
class ToolError:
    """A known error, and its meaning as a clause. `one_card`: the other cards work."""

    known: KnownError
    meaning: str
    one_card: bool


def tool_error(text: str) -> ToolError | None:
    """Return the failure that a text of nvidia-smi reports, None if it is unknown or no failure."""
    found = find(text, MEANINGS)
    return ToolError(found.error, MEANINGS[found.error.name], found.error.name in _OF_ONE_CARD) if found else None


def named_error(name: str) -> ToolError:
    """Return the failure of that name, for output that shows it without a message."""
    known = next(error for error in KNOWN_ERRORS if error.name == name)
    return ToolError(known, MEANINGS[name], name in _OF_ONE_CARD)
