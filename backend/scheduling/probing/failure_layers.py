"""Failure layers: from an error text of a library, a driver or the system to the layer that failed and a remedy.

The texts and remedies are in the table of known errors.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.common.known_errors import remedy as remedies
from backend.common.known_errors.known_error import Layer
from backend.common.known_errors.place import Place
from backend.common.known_errors.table import find


@dataclass(frozen=True)
class Cause:
    """The layer that failed, and the remedy as sentences. `absent`: something is missing rather than broken."""

    layer: Layer
    remedy: str
    absent: bool = False


def cause_of(
    text: str, otherwise: Layer = "computation", remedy: str | None = None, place: Place | None = None
) -> Cause:
    """Return the layer and the remedy for an error text at a place.

    Default for a text that is not in the table: `otherwise`, and `remedy`, or how to report the text.
    """
    place = place or Place()
    found = find(text)
    if found is None:
        return Cause(otherwise, remedy or remedies.unknown(place))
    return Cause(found.error.layer or otherwise, remedies.remedy_for(found, place), found.error.absent)
