"""The list of a library's cards, in which a card that cannot be described does not hide the others."""

from __future__ import annotations

from collections.abc import Callable

from backend.common.device_api import DetectedDevice
from backend.devices._mechanisms.identity import hardware_id

_TEXT_LIMIT = 500


def describe_all(
    describe: Callable[[int], DetectedDevice],
    count: int,
    vendor: str,
    library: str,
    address: Callable[[int], str | None] = lambda position: None,
) -> list[DetectedDevice]:
    """Return the description of each position; a card whose description fails has the `fault` instead.

    `vendor` names such a card; `address`: optional, returns its PCI address. Raises what `describe` raises if it fails
    for all cards.
    """
    cards: list[DetectedDevice] = []
    failures: list[Exception] = []
    for position in range(count):
        try:
            cards.append(describe(position))
        except Exception as error:  # noqa: BLE001 (the libraries' exceptions have no common base class)
            failures.append(error)
            place = address(position)
            identity = {"pci": place} if place else {}
            cards.append(
                DetectedDevice(
                    name=f"{vendor} card {position}",
                    kind="gpu",
                    hardware_id=hardware_id(identity),
                    memory_bytes=None,
                    memory_free_bytes=None,
                    library=library,
                    position=position,
                    count=count,
                    identity=identity,
                    fault=_one_line(error),
                )
            )
    if len(failures) == count:
        raise failures[0]
    return cards


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:_TEXT_LIMIT]}" if lines else type(error).__name__
